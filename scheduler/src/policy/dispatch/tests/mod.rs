//! Tables for single rules, and generated sequences against a simple reference.
