//! Key-value cache in blocks of 16 positions.
//!
//! ```text
//!  block ─▶ layer ─▶ head ─▶ keys: a vector of 16 positions for each element of the head
//!                            values: a row for each of 16 positions, filled up to whole vectors
//! ```
//!
//! Scores and weighted sums are then computed without sums across a vector, in one order of additions whatever the rows.

use crate::pages::{Pages, Plain};
use crate::shared::Shared;
use crate::simd::{Kernel, LANES, Simd, Vectors, run};
use half::bf16;
use omni_kernels::model::ModelSpec;
use omni_kernels::{BLOCK, BackendError, BlockId};

const _: () = assert!(BLOCK == LANES, "positions of a block are the lanes of a vector");

/// Format of cached keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CacheFormat {
    /// Numbers of 32 bits, the reference.
    F32,
    /// Numbers of 16 bits, 8 of them the exponent.
    Bf16,
}

/// Number of the cache.
pub(crate) trait Element: Plain + Default + Send + Sync + 'static {
    /// The loops over many rows take numbers that are converted before; those over few fetch what comes next.
    const CONVERTED: bool;
    /// Vectors in a line of memory.
    const OF_LINE: usize = 64 / size_of::<[Self; LANES]>();

    /// Loads a vector.
    fn load<S: Simd>(simd: S, from: &[Self; LANES]) -> S::Vector;

    /// Rounds numbers.
    fn round(vectors: Vectors, from: &[f32], to: &mut [Self]);
}

impl Element for f32 {
    const CONVERTED: bool = false;

    #[inline(always)]
    fn load<S: Simd>(simd: S, from: &[Self; LANES]) -> S::Vector {
        simd.load(from)
    }

    fn round(_: Vectors, from: &[f32], to: &mut [Self]) {
        to.copy_from_slice(from);
    }
}

impl Element for bf16 {
    const CONVERTED: bool = true;

    #[inline(always)]
    fn load<S: Simd>(simd: S, from: &[Self; LANES]) -> S::Vector {
        simd.load_bf16(from)
    }

    fn round(vectors: Vectors, from: &[f32], to: &mut [Self]) {
        run(vectors, Round { from, to });
    }
}

/// Rounding to 16 bits, ties to even.
struct Round<'a> {
    from: &'a [f32],
    to: &'a mut [bf16],
}

impl Kernel for Round<'_> {
    type Output = ();

    /// Written for the compiler's own vectors.
    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        for (from, to) in self.from.iter().zip(self.to) {
            let bits = from.to_bits();
            let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
            let quiet = bits >> 16 | 0x40;
            *to = bf16::from_bits(if bits & 0x7fff_ffff > 0x7f80_0000 { quiet } else { rounded } as u16);
        }
    }
}

/// Keys and values of a layer within a block, in elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LayerLayout {
    /// First element.
    offset: usize,
    /// Width of a head.
    head_width: usize,
}

impl LayerLayout {
    /// Vectors of a position's values.
    pub(crate) fn stride(self) -> usize {
        self.head_width.div_ceil(LANES)
    }

    /// Elements of a head: keys and values.
    fn head(self) -> usize {
        (self.head_width + self.stride() * LANES) * BLOCK
    }
}

/// Places of keys and values in a block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) format: CacheFormat,
    pub(crate) layers: Vec<LayerLayout>,
    /// Elements of a block.
    elements: usize,
}

impl Layout {
    pub(crate) fn new(spec: &ModelSpec, format: CacheFormat) -> Self {
        let mut layers = Vec::with_capacity(spec.layers.len());
        let mut elements = 0;
        for layer in &spec.layers {
            let place = LayerLayout { offset: elements, head_width: layer.attention.head_width };
            elements += place.head() * layer.attention.kv_heads;
            layers.push(place);
        }
        Self { format, layers, elements }
    }

    /// Bytes of a block.
    pub(crate) fn block_bytes(&self) -> usize {
        match self.format {
            CacheFormat::F32 => self.elements * size_of::<f32>(),
            CacheFormat::Bf16 => self.elements * size_of::<bf16>(),
        }
    }
}

/// Cache of all layers.
#[derive(Debug)]
pub(crate) struct Cache {
    memory: Pages,
    block_bytes: usize,
}

impl Cache {
    /// Takes memory for so many blocks.
    pub(crate) fn new(layout: &Layout, blocks: u32) -> Result<Self, BackendError> {
        let block_bytes = layout.block_bytes();
        let bytes = block_bytes.saturating_mul(blocks as usize);
        Ok(Self { memory: Pages::new(bytes, "the key-value cache")?, block_bytes })
    }

    /// Contents of a block.
    pub(crate) fn block(&self, block: BlockId) -> &[u8] {
        &self.memory.bytes()[block.0 as usize * self.block_bytes..][..self.block_bytes]
    }

    /// Contents of a block, to be written.
    pub(crate) fn block_mut(&mut self, block: BlockId) -> &mut [u8] {
        &mut self.memory.bytes_mut()[block.0 as usize * self.block_bytes..][..self.block_bytes]
    }

    /// Copies a block.
    pub(crate) fn copy(&mut self, from: BlockId, to: BlockId) {
        let start = from.0 as usize * self.block_bytes;
        self.memory.bytes_mut().copy_within(start..start + self.block_bytes, to.0 as usize * self.block_bytes);
    }

    /// Lends all elements to the threads of a step.
    pub(crate) fn lend<E: Element>(&mut self, layout: &Layout) -> Lent<'_, E> {
        Lent { elements: Shared::new(self.memory.elements_mut::<E>()), block: layout.elements }
    }
}

/// Elements of the cache, lent to threads.
pub(crate) struct Lent<'a, E> {
    elements: Shared<'a, E>,
    /// Elements of a block.
    block: usize,
}

/// Keys of a head in a block, one vector for each element, and its values, `stride` vectors for each position.
pub(crate) type Tiles<'a, E> = (&'a [[E; LANES]], &'a [[E; LANES]]);

#[allow(unsafe_code, reason = "threads read and write disjoint parts of the cache")]
impl<E: Element> Lent<'_, E> {
    /// Lends keys and values of a head for reading.
    ///
    /// # Safety
    /// The caller lets no thread write the block meanwhile.
    pub(crate) unsafe fn read(&self, layer: LayerLayout, head: usize, block: BlockId) -> Tiles<'_, E> {
        let start = block.0 as usize * self.block + layer.offset + head * layer.head();
        // SAFETY: by the caller.
        let all = unsafe { self.elements.read(start..start + layer.head()) };
        all.as_chunks().0.split_at(layer.head_width)
    }

    /// Writes key and value of a head at a position.
    ///
    /// # Safety
    /// The caller lets no other thread read or write the block meanwhile, but for other heads' or layers' parts.
    pub(crate) unsafe fn write(
        &self,
        layer: LayerLayout,
        head: usize,
        (block, position): (BlockId, usize),
        (key, value): (&[f32], &[f32]),
        vectors: Vectors,
    ) {
        let start = block.0 as usize * self.block + layer.offset + head * layer.head();
        // SAFETY: by the caller.
        let all = unsafe { self.elements.write(start..start + layer.head()) };
        let (keys, values) = all.as_chunks_mut::<LANES>().0.split_at_mut(layer.head_width);
        let mut rounded = [E::default(); 4 * LANES];
        for (keys, key) in keys.chunks_mut(rounded.len()).zip(key.chunks(rounded.len())) {
            E::round(vectors, key, &mut rounded[..key.len()]);
            for (lanes, key) in keys.iter_mut().zip(rounded) {
                lanes[position] = key;
            }
        }
        let row = &mut values[position * layer.stride()..][..layer.stride()];
        E::round(vectors, value, &mut row.as_flattened_mut()[..value.len()]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::level::Level;

    #[test]
    fn numbers_are_rounded_as_by_the_reference() {
        let mut random = fastrand::Rng::with_seed(1);
        for level in Level::all_supported() {
            for count in [1, 16, 100, 1000] {
                let mut from: Vec<f32> = (0..count).map(|_| f32::from_bits(random.u32(..))).collect();
                from[0] = f32::from_bits(0x3f80_8000);
                let mut to = vec![bf16::ZERO; count];
                Element::round(Vectors::of(level), &from, &mut to);
                for (from, to) in from.into_iter().zip(to) {
                    assert_eq!(to.to_bits(), bf16::from_f32(from).to_bits(), "{from:e}");
                }
            }
        }
    }
}
