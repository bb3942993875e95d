//! Weights of a checkpoint into panels.

use super::form::{Form, GROUP, Grouped, PANEL};
use super::line::{Line, LineMemory};
use super::{PackedMatrix, Weights, kernel, quantise};
use crate::level::Level;
use crate::threads::Threads;
use half::f16;
use omni_checkpoint::{GroupedRow, Matrix, Values};
use omni_kernels::BackendError;
use omni_kernels::model::RowOrder;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

/// Rows of the checkpoint's matrix that become the outputs.
#[derive(Debug, Clone)]
pub(super) struct Rows {
    range: Range<usize>,
    order: RowOrder,
}

impl Rows {
    /// All rows of a matrix with so many.
    pub(super) fn all(rows: usize) -> Self {
        Self { range: 0..rows, order: RowOrder::Outputs }
    }

    /// Row of an output.
    fn row(&self, output: usize) -> usize {
        self.range.start
            + match self.order {
                RowOrder::Outputs => output,
                RowOrder::Interleaved { head_width } => {
                    let (head, place) = (output / head_width, output % head_width);
                    let (pair, second) = (place % (head_width / 2), place / (head_width / 2));
                    head * head_width + pair * 2 + second
                }
            }
    }
}

/// Packer of a model's matrices, which share their memory.
#[derive(Debug)]
pub(crate) struct Packer<'a> {
    level: Level,
    threads: &'a Threads,
    memory: LineMemory,
}

impl<'a> Packer<'a> {
    /// Packs for a level that the processor has, or that is tried in a process of its own. The threads share the work on
    /// each matrix.
    pub(crate) fn new(level: Level, threads: &'a Threads) -> Self {
        Self { level, threads, memory: LineMemory::default() }
    }

    /// Packs some rows of a matrix.
    ///
    /// # Errors
    /// There is no memory, or the matrix has a form that no kernel reads.
    ///
    /// # Panics
    /// If the matrix does not have the rows, or heads do not divide them.
    pub(crate) fn pack(
        &mut self,
        name: &str,
        source: &Matrix<'_>,
        rows: Range<usize>,
        order: RowOrder,
        weights: Weights,
    ) -> Result<PackedMatrix, BackendError> {
        let refuse = |reason: String| BackendError::Tensor { tensor: name.to_owned(), reason };
        let form = form(source, weights).map_err(refuse)?;
        self.pack_in(form, source, &Rows { range: rows, order })
    }

    /// Packs rows in a form.
    pub(super) fn pack_in(
        &mut self,
        form: Form,
        source: &Matrix<'_>,
        rows: &Rows,
    ) -> Result<PackedMatrix, BackendError> {
        assert!(rows.range.end <= source.rows, "rows {:?} of {}", rows.range, source.rows);
        let (outputs, inputs) = (rows.range.len(), source.columns);
        if let RowOrder::Interleaved { head_width } = rows.order {
            assert!(head_width.is_multiple_of(2) && outputs.is_multiple_of(head_width), "heads of {head_width} rows");
        }
        let panels = outputs.div_ceil(PANEL);
        let mut lines = self.memory.take(panels * form.panel_lines(inputs))?;
        let mut factors = vec![1.0; if matches!(form, Form::Grouped(_)) { panels } else { 0 }];
        let next = lines.as_mut_slice().chunks_exact_mut(form.panel_lines(inputs).max(1)).enumerate();
        let next = Mutex::new((next, factors.iter_mut()));
        self.threads.run(|_, _| {
            let mut writer = Writer::new(source, rows, form);
            loop {
                let mut next = next.lock().unwrap_or_else(PoisonError::into_inner);
                let (Some((panel, lines)), factor) = (next.0.next(), next.1.next()) else { break };
                drop(next);
                let first = panel * PANEL;
                let written = writer.panel(first..outputs.min(first + PANEL), lines);
                if let Some(factor) = factor {
                    *factor = written;
                }
            }
        });
        let kernel = kernel::kernel(self.level, form);
        Ok(PackedMatrix { outputs, inputs, form, level: self.level, kernel, lines, factors })
    }
}

/// Chooses the form of a matrix.
fn form(source: &Matrix<'_>, weights: Weights) -> Result<Form, String> {
    Ok(match (weights, &source.values) {
        (Weights::F32, _) | (Weights::AsStored, Values::F32(_)) => Form::F32,
        (Weights::AsStored, Values::F16(_)) => Form::F16,
        (Weights::AsStored, Values::Bf16(_)) => Form::Bf16,
        (Weights::AsStored | Weights::Int8 | Weights::Int4, Values::Grouped(grouped)) => {
            match (weights, grouped.bits(), grouped.group(), grouped.symmetric()) {
                (_, 4, group, true) if group.is_multiple_of(GROUP) => Form::Grouped(Grouped::Int4),
                (_, 4, group, false) if group.is_multiple_of(GROUP) => Form::Grouped(Grouped::Int4Offset),
                (Weights::Int4, ..) => Form::Grouped(Grouped::Int4Offset),
                (_, 5, group, true) if group.is_multiple_of(GROUP) => Form::Grouped(Grouped::Int5),
                (_, 5, group, false) if group.is_multiple_of(GROUP) => Form::Grouped(Grouped::Int5Offset),
                (_, 6, 16, true) => Form::Grouped(Grouped::Int6Halves),
                (_, _, group, true) if group.is_multiple_of(GROUP) => Form::Grouped(Grouped::Int8),
                (_, _, group, false) if group.is_multiple_of(GROUP) => Form::Grouped(Grouped::Int8Offset),
                (_, _, 16, true) => Form::Grouped(Grouped::Int8Halves),
                (_, bits, group, _) => {
                    return Err(format!("{bits} bits in groups of {group} with offsets have no kernel"));
                }
            }
        }
        (Weights::Int8, _) => Form::Grouped(Grouped::Int8),
        (Weights::Int4, _) => Form::Grouped(Grouped::Int4Offset),
    })
}

/// Writer of one panel after another.
struct Writer<'a> {
    source: &'a Matrix<'a>,
    rows: &'a Rows,
    form: Form,
    quants: Vec<GroupedRow>,
    values: Vec<f32>,
}

impl<'a> Writer<'a> {
    fn new(source: &'a Matrix<'a>, rows: &'a Rows, form: Form) -> Self {
        let (quants, values) = (vec![GroupedRow::default(); PANEL], vec![0.0; source.columns]);
        Self { source, rows, form, quants, values }
    }

    /// Packs a panel, and returns the factor of its sums.
    fn panel(&mut self, outputs: Range<usize>, lines: &mut [Line]) -> f32 {
        match (self.form, self.source.values) {
            (Form::F16, Values::F16(bytes)) => self.halves(outputs, bytes, |place, input| (input, place), lines),
            (Form::Bf16, Values::Bf16(bytes)) => {
                let at = |place: usize, input: usize| (input / 2 * 2 + place / 16, place % 16 * 2 + input % 2);
                self.halves(outputs, bytes, at, lines);
            }
            (Form::Grouped(grouped), _) => return self.grouped(outputs, grouped, lines),
            _ => self.floats(outputs, lines),
        }
        1.0
    }

    /// Packs values in 32 bits.
    fn floats(&mut self, outputs: Range<usize>, lines: &mut [Line]) {
        for (place, output) in outputs.enumerate() {
            self.source.row(self.rows.row(output), &mut self.values);
            for (step, value) in lines.as_chunks_mut::<2>().0.iter_mut().zip(&self.values) {
                step[place / 16].0.as_chunks_mut().0[place % 16] = value.to_le_bytes();
            }
        }
    }

    /// Packs values of 16 bits as they are; `at` is the line and the half word of an input of an output.
    fn halves(
        &self,
        outputs: Range<usize>,
        bytes: &[u8],
        at: impl Fn(usize, usize) -> (usize, usize),
        lines: &mut [Line],
    ) {
        let (values, _) = bytes.as_chunks::<2>();
        for (place, output) in outputs.enumerate() {
            let row = &values[self.rows.row(output) * self.source.columns..][..self.source.columns];
            for (input, value) in row.iter().enumerate() {
                let (line, half) = at(place, input);
                lines[line].0.as_chunks_mut().0[half] = *value;
            }
        }
    }

    /// Packs integers.
    fn grouped(&mut self, outputs: Range<usize>, form: Grouped, lines: &mut [Line]) -> f32 {
        let count = outputs.len();
        let columns = self.unpack(outputs, form);
        let rows = &mut self.quants[..count];
        let scales = rows.iter().flat_map(|row| &row.scales);
        let offsets = rows.iter().filter(|_| form.has_offsets()).flat_map(|row| &row.offsets);
        let factor = factor(scales.chain(offsets).fold(0.0, |greatest: f32, value| greatest.max(value.abs())));
        for (place, row) in rows.iter().enumerate() {
            write_row(form, place, row, columns, factor, lines);
        }
        factor
    }

    /// Fills `quants` with rows in the form's bits, and returns the columns of a group.
    fn unpack(&mut self, outputs: Range<usize>, form: Grouped) -> usize {
        let rows = &mut self.quants[..outputs.len()];
        match self.source.values {
            Values::Grouped(grouped) if u32::from(grouped.bits()) <= form.bits() => {
                if self.rows.order == RowOrder::Outputs {
                    grouped.rows(self.rows.row(outputs.start), rows);
                } else {
                    for (output, row) in outputs.zip(&mut *rows) {
                        grouped.row(self.rows.row(output), row);
                    }
                }
                let shift = if form.has_offsets() { 0 } else { form.zero() - (1 << (grouped.bits() - 1)) };
                for row in rows {
                    row.quants.iter_mut().for_each(|quant| *quant = quant.wrapping_add(shift));
                }
                grouped.group()
            }
            _ => {
                for (output, row) in outputs.zip(rows) {
                    self.source.row(self.rows.row(output), &mut self.values);
                    quantise::row(&self.values, form, row);
                }
                GROUP
            }
        }
    }
}

/// Power of two by which scales are divided so that f16 holds them: the greatest becomes at least 2¹⁴ and less than
/// 2¹⁵, so that a scale 2²⁸ times smaller than the greatest still has 11 bits.
fn factor(greatest: f32) -> f32 {
    if greatest.is_normal() { f32::from_bits(greatest.to_bits() & 0x7f80_0000) * 2_f32.powi(-14) } else { 1.0 }
}

/// Writes an output's integers, in groups of so many columns, into its panel.
fn write_row(form: Grouped, place: usize, row: &GroupedRow, columns: usize, factor: f32, lines: &mut [Line]) {
    let half = |value: f32| f16::from_f32(value / factor).to_le_bytes();
    for (group, (lines, quants)) in lines.chunks_exact_mut(form.lines()).zip(row.quants.chunks(GROUP)).enumerate() {
        let first = group * GROUP / columns;
        let mut write = |line: usize, value| lines[line].0.as_chunks_mut().0[place] = half(value);
        write(0, row.scales[first]);
        if form.has_halves() {
            let second = (group * GROUP + GROUP / 2) / columns;
            write(1, row.scales.get(second).copied().unwrap_or(0.0));
        } else if form.has_offsets() {
            write(1, row.offsets[first]);
        }
        write_quants(form, place, quants, &mut lines[form.first_quants()..]);
    }
}

/// Writes the quants of a group.
fn write_quants(form: Grouped, place: usize, quants: &[u8], lines: &mut [Line]) {
    let mut full = [0; GROUP];
    full[..quants.len()].copy_from_slice(quants);
    let (quads, _) = full.as_chunks::<4>();
    let (half, word) = (place / 16, place % 16);
    let mut add = |line: usize, quad: [u8; 4], shift: usize| {
        let out = &mut lines[line + half].0.as_chunks_mut().0[word];
        *out = (u32::from_le_bytes(*out) | u32::from_le_bytes(quad) << shift).to_le_bytes();
    };
    for (quad, quants) in quads.iter().enumerate() {
        if form.bits() == 8 {
            add(quad * 2, *quants, 0);
            continue;
        }
        add(quad / 2 * 2, quants.map(|quant| quant & 15), quad % 2 * 4);
        if form.high_bits() > 0 {
            let (line, shift) = form.high_place(quad);
            add(line, quants.map(|quant| quant >> 4), shift);
        }
    }
}
