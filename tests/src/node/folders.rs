//! The models folder of a node, when the next scheduler is to serve another one.

use super::Node;
use std::fs;

impl Node {
    /// Has the next scheduler serve another models folder, to which models are published from now on.
    pub fn serve_another_folder(&mut self, name: &str) {
        fs::create_dir(self.setup.path(name)).unwrap();
        name.clone_into(&mut self.setup.models);
    }
}
