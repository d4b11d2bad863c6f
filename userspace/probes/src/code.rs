//! Machine code: decoding, and what the kernel can do with a probe on an
//! instruction.
//!
//! In: bytes of a function. Out: instructions, their class, and which registers
//! still hold a value. Never: a probe on an instruction that the kernel refuses,
//! since one such site fails a whole link.

use std::ops::Range;

use dial9_bpf_abi::cookie::{Cookie, Register};
use iced_x86::{
    Code, Decoder, DecoderOptions, FlowControl, Formatter as _, Instruction,
    InstructionInfoFactory, IntelFormatter, Mnemonic, OpAccess, OpKind,
};

use crate::elf::Image;
use crate::plan::{Binary, InstructionClass, Probe, Site};

/// Registers that a call may change (x86-64 psABI, figure 3.4): all but `rbx`,
/// `rsp`, `rbp` and `r12` to `r15`.
const CLOBBERED_BY_CALL: RegisterSet = RegisterSet(0b0000_1111_1100_0111);

/// How much of a function is decoded, bytes: an instruction takes 40 bytes for each
/// of its own.
const MAX_FUNCTION_BYTES: u64 = 1 << 20;

/// General-purpose registers, one bit each, by instruction encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RegisterSet(u16);

impl RegisterSet {
    pub(crate) const EMPTY: Self = Self(0);
    pub(crate) const ALL: Self = Self(u16::MAX);
    const RSP: u8 = 4;

    pub(crate) const fn only(register: Register) -> Self {
        Self(1 << (register.0 & 15))
    }

    pub(crate) const fn contains(self, register: u8) -> bool {
        self.0 >> (register & 15) & 1 == 1
    }

    pub(crate) const fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    const fn with(self, register: u8) -> Self {
        Self(self.0 | 1 << (register & 15))
    }

    /// One of the registers: `rdi` if it is among them.
    pub(crate) fn first(self) -> Option<Register> {
        if self.contains(Register::RDI.0) {
            return Some(Register::RDI);
        }
        let lowest = u8::try_from(self.0.trailing_zeros()).ok()?;
        (lowest < 16).then_some(Register(lowest))
    }
}

/// Follows registers through instructions.
#[derive(Debug)]
pub(crate) struct Effects(InstructionInfoFactory);

impl Effects {
    pub(crate) fn new() -> Self {
        Self(InstructionInfoFactory::new())
    }

    /// Registers whose value the instruction may change; for a call, those that
    /// the function called may change.
    pub(crate) fn written(&mut self, instruction: &Instruction) -> RegisterSet {
        let called = match instruction.flow_control() {
            FlowControl::Call | FlowControl::IndirectCall => CLOBBERED_BY_CALL,
            _ => RegisterSet::EMPTY,
        };
        self.0
            .info(instruction)
            .used_registers()
            .iter()
            .filter(|used| !matches!(used.access(), OpAccess::Read | OpAccess::CondRead))
            .filter_map(|used| number(used.register()))
            .fold(called, RegisterSet::with)
    }

    /// Whether the instruction itself reads a register, by encoding; a call does not
    /// read its arguments.
    pub(crate) fn reads(&mut self, instruction: &Instruction, register: u8) -> bool {
        let used = self.0.info(instruction).used_registers().iter();
        let mut reads = used.filter(|used| !matches!(used.access(), OpAccess::Write));
        reads.any(|used| number(used.register()) == Some(register))
    }

    /// The registers that hold a value after the instruction, given those that
    /// held it before.
    pub(crate) fn step(&mut self, instruction: &Instruction, holders: RegisterSet) -> RegisterSet {
        let kept = holders.without(self.written(instruction));
        match register_copy(instruction) {
            Some((to, from)) if holders.contains(from) => kept.with(to),
            _ => kept,
        }
    }

    /// Whether the instruction may write memory.
    pub(crate) fn writes_memory(&mut self, instruction: &Instruction) -> bool {
        let used = self.0.info(instruction).used_memory().iter();
        let mut writes = used.filter(|used| {
            !matches!(
                used.access(),
                OpAccess::Read | OpAccess::CondRead | OpAccess::NoMemAccess
            )
        });
        writes.next().is_some()
    }

    /// Whether the instruction changes the stack pointer.
    pub(crate) fn moves_stack(&mut self, instruction: &Instruction) -> bool {
        instruction.is_stack_instruction() || self.written(instruction).contains(RegisterSet::RSP)
    }
}

/// Encoding number of the 64-bit register around `register`.
pub(crate) fn number(register: iced_x86::Register) -> Option<u8> {
    let full = register.full_register();
    full.is_gpr64()
        .then(|| u8::try_from(full.number()).ok())
        .flatten()
}

/// (to, from) of a `mov` between 64-bit registers.
pub(crate) fn register_copy(instruction: &Instruction) -> Option<(u8, u8)> {
    let is_copy = matches!(instruction.code(), Code::Mov_r64_rm64 | Code::Mov_rm64_r64)
        && instruction.op0_kind() == OpKind::Register
        && instruction.op1_kind() == OpKind::Register;
    is_copy.then(|| {
        Some((
            number(instruction.op0_register())?,
            number(instruction.op1_register())?,
        ))
    })?
}

/// Base register of a memory operand `[base + displacement]` without index or
/// segment.
pub(crate) fn based_memory(instruction: &Instruction, displacement: u64) -> Option<u8> {
    let plain = instruction.memory_index() == iced_x86::Register::None
        && instruction.segment_prefix() == iced_x86::Register::None
        && instruction.memory_displacement64() == displacement;
    plain.then(|| number(instruction.memory_base())).flatten()
}

/// Decodes a function into `instructions`; false if it is too long or a byte sequence
/// in it is no instruction, where decoding ends.
pub(crate) fn decode(
    image: &Image<'_>,
    range: &Range<u64>,
    instructions: &mut Vec<Instruction>,
) -> bool {
    instructions.clear();
    let length = range.end.saturating_sub(range.start);
    let limit = usize::try_from(length.min(MAX_FUNCTION_BYTES)).unwrap_or(usize::MAX);
    let bytes = image.bytes(range.start, limit).unwrap_or_default();
    let mut decoder = Decoder::with_ip(64, bytes, range.start, DecoderOptions::NONE);
    while decoder.can_decode() {
        // Decoded where it stays, not copied there.
        let instruction = instructions.push_mut(Instruction::default());
        decoder.decode_out(instruction);
        if instruction.is_invalid() {
            instructions.pop();
            return false;
        }
    }
    bytes.len() as u64 == length
}

/// The instruction at an address.
pub(crate) fn instruction_at(image: &Image<'_>, address: u64) -> Option<Instruction> {
    const LONGEST_BYTES: u64 = 15;
    let mut instructions = Vec::new();
    let range = address..address.saturating_add(LONGEST_BYTES);
    decode(image, &range, &mut instructions);
    instructions.first().copied()
}

/// Where a direct branch or call goes, also through a pointer table (`call
/// [rip+x]`).
pub(crate) fn direct_target(image: &Image<'_>, instruction: &Instruction) -> Option<u64> {
    match instruction.flow_control() {
        FlowControl::Call | FlowControl::UnconditionalBranch | FlowControl::ConditionalBranch => {
            near_target(instruction)
        }
        FlowControl::IndirectCall | FlowControl::IndirectBranch
            if instruction.is_ip_rel_memory_operand() =>
        {
            image.pointer(instruction.ip_rel_memory_address())
        }
        _ => None,
    }
}

/// Target of a relative branch or call.
pub(crate) fn near_target(instruction: &Instruction) -> Option<u64> {
    (instruction.op0_kind() == OpKind::NearBranch64).then(|| instruction.near_branch64())
}

/// The lowest address in `range` that a branch among `instructions` goes to.
pub(crate) fn lowest_branch_target(
    instructions: &[Instruction],
    range: &Range<u64>,
) -> Option<u64> {
    branch_targets(instructions)
        .filter(|target| range.contains(target))
        .min()
}

/// Targets of the relative branches, calls not included.
pub(crate) fn branch_targets(instructions: &[Instruction]) -> impl Iterator<Item = u64> {
    instructions
        .iter()
        .filter(|instruction| {
            let flow = instruction.flow_control();
            matches!(
                flow,
                FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch
            )
        })
        .filter_map(near_target)
}

/// How the kernel executes a probed instruction; `None` where a probe is
/// refused or unsafe.
pub(crate) fn class(image: &Image<'_>, instruction: &Instruction) -> Option<InstructionClass> {
    let bytes = image.bytes(instruction.ip(), instruction.len())?;
    class_of(bytes, instruction)
}

/// x86 condition code of an emulated conditional jump.
pub(crate) fn condition(image: &Image<'_>, instruction: &Instruction) -> Option<u8> {
    match *image.bytes(instruction.ip(), instruction.len())? {
        [code @ 0x70..=0x7f, ..] | [0x0f, code @ 0x80..=0x8f, ..] => Some(code & 0x0f),
        _ => None,
    }
}

/// The rules of `arch/x86/kernel/uprobes.c` (Linux 6.18), on the safe side:
/// prefixed branches and long `nop`s count as not emulated.
fn class_of(bytes: &[u8], instruction: &Instruction) -> Option<InstructionClass> {
    if bytes.len() != instruction.len() || is_refused(bytes, instruction) {
        return None;
    }
    match *bytes {
        [0x90] | [0x66, 0x90] | [0xeb | 0xe9 | 0x70..=0x7f, ..] | [0x0f, 0x80..=0x8f, ..] => {
            Some(InstructionClass::Emulated)
        }
        // 67 e8 is what linkers make of a call through the pointer table.
        [0x50..=0x57] | [0x41, 0x50..=0x57] | [0xe8, ..] | [0x67, 0xe8, ..] => {
            Some(InstructionClass::EmulatedStack)
        }
        _ if is_prefixed_branch(instruction) => None,
        _ => Some(InstructionClass::SingleStepped),
    }
}

/// `is_prefix_bad` and the tables of good opcodes, and two cases more: five-byte
/// `nop`s, which kernels from 6.18 replace by a call that writes the red zone,
/// and whatever does not return to the next instruction in user mode.
fn is_refused(bytes: &[u8], instruction: &Instruction) -> bool {
    const PREFIXES: [u8; 11] = [
        0x26, 0x2e, 0x36, 0x3e, 0x64, 0x65, 0x66, 0x67, 0xf0, 0xf2, 0xf3,
    ];
    const REFUSED: [u8; 5] = [0x26, 0x2e, 0x36, 0x3e, 0xf0];
    let mut prefixes = bytes.iter().take_while(|byte| PREFIXES.contains(byte));
    prefixes.any(|byte| REFUSED.contains(byte))
        || instruction.mnemonic() == Mnemonic::Nop && instruction.len() == 5
        || instruction.encoding() != iced_x86::EncodingKind::Legacy
        || instruction.is_privileged()
        || instruction.is_string_instruction()
        || writes_stack_segment(instruction)
        || matches!(
            instruction.flow_control(),
            FlowControl::Interrupt | FlowControl::Exception | FlowControl::XbeginXabortXend
        )
        || matches!(
            instruction.mnemonic(),
            Mnemonic::Hlt | Mnemonic::Syscall | Mnemonic::Sysenter
        )
}

fn writes_stack_segment(instruction: &Instruction) -> bool {
    instruction.op_count() > 0
        && instruction.op0_kind() == OpKind::Register
        && instruction.op0_register().is_segment_register()
}

fn is_prefixed_branch(instruction: &Instruction) -> bool {
    (0..instruction.op_count()).any(|operand| {
        matches!(
            instruction.op_kind(operand),
            OpKind::NearBranch16 | OpKind::NearBranch32 | OpKind::NearBranch64
        )
    })
}

/// The site at an instruction; `None` where the kernel refuses a probe or the
/// cookie has no room for its values.
pub(crate) fn site(
    image: &Image<'_>,
    probe: Probe,
    instruction: &Instruction,
    cookie: Cookie,
) -> Option<Site> {
    let address = instruction.ip();
    let class = class(image, instruction)?;
    cookie.fits().then_some(Site {
        probe,
        binary: Binary::Scanned,
        file_offset: image.file_offset(address)?,
        address,
        class,
        instruction: text(instruction),
        cookie,
        function: None,
        scheduler: None,
    })
}

/// The instruction for a report, such as `jmp 0x66ed0`.
pub(crate) fn text(instruction: &Instruction) -> String {
    let mut formatter = IntelFormatter::new();
    let options = formatter.options_mut();
    options.set_hex_prefix("0x");
    options.set_hex_suffix("");
    options.set_uppercase_hex(false);
    options.set_branch_leading_zeros(false);
    options.set_show_branch_size(false);
    options.set_space_after_operand_separator(true);
    let mut text = String::new();
    formatter.format(instruction, &mut text);
    text
}

#[cfg(test)]
mod tests;
