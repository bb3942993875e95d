//! Virtual memory management: addresses, memory handles, and mappings of one onto the other.
//!
//! A handle's memory is a file (see [`crate::sharable`]), so that its bytes survive every mapping and reach other
//! processes. Handles on a device count on its card from `cuMemCreate` until the last reference and the last mapping
//! are gone; handles on the host do not. An importer is not charged a second time, and memory that only importers still
//! hold is not counted: the card knows processes, not memory.
//!
//! A mapping is in the table of allocations, and so known to copies, only while some location may use it.

mod entries;
mod shapes;
mod table;

pub(crate) use entries::SYMBOLS;
pub(crate) use shapes::Location;
