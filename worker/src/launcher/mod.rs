//! `omni-launcher`: watches the models folder, takes snapshots, makes environments, starts workers.
