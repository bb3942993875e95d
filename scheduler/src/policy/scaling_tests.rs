//! Tables and properties of the numbers wanted.
