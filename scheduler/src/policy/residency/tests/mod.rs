//! Tables for each rule, worlds that move memory in modelled time, and generated sequences.
