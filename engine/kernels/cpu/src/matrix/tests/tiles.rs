//! Kernels of AMX where the processor has none: a handler of the signal for illegal instructions computes what the
//! instructions are documented to. It shows that operands, configurations and addresses are right, and nothing of the
//! processor's own rounding and speed.
#![allow(unsafe_code, reason = "a signal handler, and memory at the addresses of instructions")]

use super::super::agreement;
use super::*;
use std::cell::RefCell;

/// State of the tiles of a thread.
struct Tiles {
    rows: [usize; 8],
    bytes: [usize; 8],
    data: [[[u8; 64]; 16]; 8],
    /// Instructions so far.
    executed: usize,
}

thread_local! {
    static TILES: RefCell<Tiles> =
        const { RefCell::new(Tiles { rows: [0; 8], bytes: [0; 8], data: [[[0; 64]; 16]; 8], executed: 0 }) };
}

/// Instruction of three bytes of prefix, an opcode and its operands.
struct Instruction {
    length: usize,
    prefix: u8,
    opcode: u8,
    /// Tiles by the fields `reg`, `rm` and `vvvv`.
    tiles: [usize; 3],
    /// Address and stride of a memory operand.
    memory: Option<(usize, usize)>,
}

/// General registers in the order of their numbers.
const REGISTERS: [libc::c_int; 16] = [
    libc::REG_RAX,
    libc::REG_RCX,
    libc::REG_RDX,
    libc::REG_RBX,
    libc::REG_RSP,
    libc::REG_RBP,
    libc::REG_RSI,
    libc::REG_RDI,
    libc::REG_R8,
    libc::REG_R9,
    libc::REG_R10,
    libc::REG_R11,
    libc::REG_R12,
    libc::REG_R13,
    libc::REG_R14,
    libc::REG_R15,
];

/// Reads an instruction, `None` if it is none of AMX.
fn decode(code: &[u8; 16], registers: &[i64]) -> Option<Instruction> {
    let [0xc4, first, second, opcode @ (0x49 | 0x4b | 0x5c | 0x5e), modrm, rest @ ..] = *code else { return None };
    if first & 0x1f != 2 {
        return None;
    }
    let register = |number: u8| registers[REGISTERS[usize::from(number)] as usize] as usize;
    let (mode, reg, rm) = (modrm >> 6, modrm >> 3 & 7, modrm & 7);
    let tiles = [reg, rm, !second >> 3 & 7].map(usize::from);
    let mut instruction = Instruction { length: 5, prefix: second & 3, opcode, tiles, memory: None };
    if mode == 3 {
        return Some(instruction);
    }
    let (base_high, index_high) = ((!first >> 5 & 1) << 3, (!first >> 6 & 1) << 3);
    let (base, index, rest) = if rm == 4 {
        let sib = rest[0];
        instruction.length += 1;
        (sib & 7 | base_high, Some((sib >> 3 & 7 | index_high, sib >> 6)), &rest[1..])
    } else {
        (rm | base_high, None, &rest[..])
    };
    assert!(mode != 0 || base & 7 != 5, "an address without a base");
    let displacement = match mode {
        0 => 0,
        1 => i64::from(rest[0] as i8),
        _ => i64::from(i32::from_le_bytes(*rest.first_chunk()?)),
    };
    instruction.length += [0, 1, 4][usize::from(mode)];
    let stride = index.filter(|(index, _)| *index != 4).map_or(0, |(index, scale)| register(index) << scale);
    instruction.memory = Some((register(base).wrapping_add_signed(displacement as isize), stride));
    Some(instruction)
}

impl Tiles {
    fn execute(&mut self, instruction: &Instruction) {
        self.executed += 1;
        let [reg, rm, third] = instruction.tiles;
        match (instruction.opcode, instruction.prefix, instruction.memory) {
            (0x49, 0, Some((address, _))) => self.configure(address),
            (0x49, 0, None) => (self.rows, self.bytes) = ([0; 8], [0; 8]),
            (0x49, 3, None) => self.data[reg] = [[0; 64]; 16],
            (0x4b, 3, Some((address, stride))) => {
                assert!(self.rows[reg] > 0, "tile {reg} is not configured");
                self.data[reg] = [[0; 64]; 16];
                for row in 0..self.rows[reg] {
                    let from = (address + row * stride) as *const u8;
                    // SAFETY: the instruction would read there.
                    let row_bytes = unsafe { std::slice::from_raw_parts(from, self.bytes[reg]) };
                    self.data[reg][row][..row_bytes.len()].copy_from_slice(row_bytes);
                }
            }
            (0x4b, 2, Some((address, stride))) => {
                for (row, data) in self.data[reg][..self.rows[reg]].iter().enumerate() {
                    let to = (address + row * stride) as *mut u8;
                    // SAFETY: the instruction would write there.
                    unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), to, self.bytes[reg]) };
                }
            }
            (0x5c, 2, None) => self.multiply(reg, rm, third, bf16_products),
            (0x5e, 2, None) => self.multiply(reg, rm, third, integer_products),
            (opcode, prefix, _) => panic!("instruction {opcode:x} with prefix {prefix}"),
        }
    }

    fn configure(&mut self, address: usize) {
        // SAFETY: the instruction would read there.
        let config: [u8; 64] = unsafe { (address as *const [u8; 64]).read() };
        assert_eq!((config[0], config[1], &config[2..16]), (1, 0, &[0; 14][..]));
        assert_eq!((&config[32..48], &config[56..]), (&[0; 16][..], &[0; 8][..]), "more than eight tiles");
        for tile in 0..8 {
            self.bytes[tile] = usize::from(u16::from_le_bytes([config[16 + tile * 2], config[17 + tile * 2]]));
            self.rows[tile] = usize::from(config[48 + tile]);
            assert!(self.bytes[tile] <= 64 && self.rows[tile] <= 16 && (self.bytes[tile] > 0) == (self.rows[tile] > 0));
        }
        self.data = [[[0; 64]; 16]; 8];
    }

    /// Adds products of the words of `a`'s rows and `b`'s columns to `sums`.
    fn multiply(&mut self, sums: usize, a: usize, b: usize, add: fn(&mut [u8; 4], &mut dyn Iterator<Item = Words>)) {
        assert!(self.rows[sums] > 0 && self.rows[sums] == self.rows[a] && self.bytes[sums] == self.bytes[b]);
        assert!(self.rows[b] * 4 == self.bytes[a], "inputs of both");
        for row in 0..self.rows[sums] {
            for column in 0..self.bytes[sums] / 4 {
                let word = |tile: usize, row: usize, word: usize| self.data[tile][row].as_chunks::<4>().0[word];
                let mut sum = word(sums, row, column);
                add(&mut sum, &mut (0..self.rows[b]).map(|step| (word(a, row, step), word(b, step, column))));
                self.data[sums][row].as_chunks_mut::<4>().0[column] = sum;
            }
        }
    }
}

/// Words of four bytes that are multiplied.
type Words = ([u8; 4], [u8; 4]);

/// Adds pairs of bf16: those of even and of odd inputs for themselves.
fn bf16_products(sum: &mut [u8; 4], words: &mut dyn Iterator<Item = Words>) {
    let value = |word: [u8; 4], at: usize| {
        f32::from_bits(u32::from(u16::from_le_bytes([word[at * 2], word[at * 2 + 1]])) << 16)
    };
    let mut parts = [0.0_f32; 2];
    for (a, b) in words {
        for (at, part) in parts.iter_mut().enumerate() {
            *part = value(a, at).mul_add(value(b, at), *part);
        }
    }
    *sum = (f32::from_le_bytes(*sum) + (parts[0] + parts[1])).to_le_bytes();
}

/// Adds products of signed and unsigned integers.
fn integer_products(sum: &mut [u8; 4], words: &mut dyn Iterator<Item = Words>) {
    let products = words.flat_map(|(a, b)| a.into_iter().zip(b).map(|(a, b)| i32::from(a as i8) * i32::from(b)));
    *sum = (i32::from_le_bytes(*sum) + products.sum::<i32>()).to_le_bytes();
}

/// Executes the instruction at which the signal came, or lets the process die of it.
extern "C" fn handle(_: libc::c_int, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the system passes the context of the instruction.
    let context = unsafe { &mut *context.cast::<libc::ucontext_t>() };
    let registers = &mut context.uc_mcontext.gregs;
    let pointer = registers[libc::REG_RIP as usize];
    // SAFETY: code is readable; an instruction is never within 16 bytes of the end of this program's.
    let code = unsafe { (pointer as *const [u8; 16]).read() };
    if let Some(instruction) = decode(&code, registers) {
        TILES.with_borrow_mut(|tiles| tiles.execute(&instruction));
        registers[libc::REG_RIP as usize] += instruction.length as i64;
        return;
    }
    // SAFETY: the default is to end the process.
    unsafe { libc::signal(libc::SIGILL, libc::SIG_DFL) };
    // SAFETY: the signal comes when this handler returns.
    unsafe { libc::raise(libc::SIGILL) };
}

/// Lets AMX's instructions be executed by this module. Returns false if the processor has them.
fn emulate() -> bool {
    if Level::Amx.is_supported() {
        return false;
    }
    // SAFETY: zeros are a valid value.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handle as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO;
    // SAFETY: the handler has the signature of SA_SIGINFO.
    let result = unsafe { libc::sigaction(libc::SIGILL, &raw const action, std::ptr::null_mut()) };
    assert_eq!(result, 0);
    true
}

#[test]
fn tiles_agree_with_the_scalar_level() {
    if !Level::Avx512Bf16.is_supported() {
        return;
    }
    let emulated = emulate();
    assert!(agreement::agrees(Level::Amx));
    assert!(!emulated || TILES.with_borrow(|tiles| tiles.executed > 100 && tiles.rows == [0; 8]));
}

#[test]
fn tiles_compute_a_row_alike_alone_and_among_others() {
    if !Level::Avx512Bf16.is_supported() {
        return;
    }
    emulate();
    let mut random = fastrand::Rng::with_seed(10);
    let threads = Threads::new(1).unwrap();
    for form in Form::ALL {
        for rows in [2, 9, 16, 17, 32, 33] {
            let (outputs, inputs) = (random.usize(1..70), random.usize(1..100));
            let matrix = packed(form, &numbers(&mut random, outputs * inputs), outputs, Level::Amx, &threads);
            let values = numbers(&mut random, rows * inputs);
            let multiply = |values: &[f32]| {
                let mut input = Input::new(Level::Amx);
                input.prepare(matrix.input_kind(), values, values.len() / inputs, inputs, &threads);
                let mut out = vec![f32::NAN; values.len() / inputs * outputs];
                multiply(&threads, &input, &mut [Product::new(&matrix, &mut out, outputs)]);
                out
            };
            let together = multiply(&values);
            for row in [0, rows / 2, rows - 1] {
                let alone = multiply(&values[row * inputs..][..inputs]);
                assert_eq!(bits(&alone), bits(&together[row * outputs..][..outputs]), "{form:?}: row {row} of {rows}");
            }
        }
    }
}
