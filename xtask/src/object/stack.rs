//! How much of its stack a program at an uprobe may use.
//!
//! In: the code of a section. Out: an error where a function in it uses more than is safe.
//! Never: a judgement of the rest of the code; the verifier has one.
//!
//! From Linux 6.13 on a function of a program that uses 64 bytes or more has its stack in
//! memory of the CPU instead of the thread's (kernel/bpf/verifier.c,
//! `bpf_enable_priv_stack` and `check_max_stack_depth_subprog`, which rounds up to 16). That
//! is meant for programs of which no other run can begin on the CPU meanwhile, and kprobes
//! are such, but the kernel tells uprobes from them by nothing, and these may be preempted,
//! or sleep: then another thread's run writes into the same stack. On 7.2 polls were told of
//! other tasks, or not at all.

use anyhow::{Result, bail, ensure};

/// Most bytes.
const MAX_STACK: i32 = 48;
/// Sections of what runs at uprobes: the programs, and the functions that programs call.
pub(super) const SECTIONS: [&str; 3] = ["uprobe.s", "uprobe", ".text"];

/// Opcodes and registers of instructions
/// (Documentation/bpf/standardization/instruction-set.rst).
const LDX: u8 = 1;
const ST: u8 = 2;
const STX: u8 = 3;
const MOV_REGISTER: u8 = 0xbf;
const ADD_NUMBER: u8 = 0x07;
/// Points to the end of the stack.
const FRAME: u8 = 10;

struct Instruction {
    code: u8,
    to: u8,
    from: u8,
    offset: i16,
    number: i32,
}

impl Instruction {
    fn of(bytes: [u8; 8]) -> Self {
        let [code, registers, offset @ .., a, b, c, d] = bytes;
        Self {
            code,
            to: registers & 0xf,
            from: registers >> 4,
            offset: i16::from_le_bytes(offset),
            number: i32::from_le_bytes([a, b, c, d]),
        }
    }

    /// Whether it reads or writes at an offset from the end of the stack.
    fn is_on_stack(&self) -> bool {
        match self.code & 7 {
            LDX => self.from == FRAME,
            ST | STX => self.to == FRAME,
            _ => false,
        }
    }

    fn takes_pointer(&self) -> bool {
        self.code == MOV_REGISTER && self.from == FRAME
    }
}

/// Checks a section.
pub(super) fn check(section: &str, code: &[u8]) -> Result<()> {
    let (instructions, rest) = code.as_chunks::<8>();
    ensure!(rest.is_empty(), "{section}: half an instruction");
    let mut instructions = instructions.iter().copied().map(Instruction::of).peekable();
    while let Some(instruction) = instructions.next() {
        let offset = if instruction.is_on_stack() {
            i32::from(instruction.offset)
        } else if instruction.takes_pointer() {
            match instructions.peek() {
                Some(next) if next.code == ADD_NUMBER && next.to == instruction.to => next.number,
                _ => bail!("{section}: a pointer to the stack that is not understood"),
            }
        } else {
            continue;
        };
        ensure!(
            -MAX_STACK <= offset,
            "{section}: {} bytes of stack, more than {MAX_STACK}",
            -i64::from(offset)
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::check;

    #[track_caller]
    fn refused(code: &[[u8; 8]], because: &str) {
        let error = check("uprobe.s", code.as_flattened()).unwrap_err();
        assert!(error.to_string().contains(because), "{error}");
    }

    /// `r2 = r10; r2 += -bytes`.
    fn pointer(bytes: i8) -> [[u8; 8]; 2] {
        let [low, high] = i16::from(-bytes).to_le_bytes();
        [
            [0xbf, 0xa2, 0, 0, 0, 0, 0, 0],
            [0x07, 0x02, 0, 0, low, high, 0xff, 0xff],
        ]
    }

    #[test]
    fn forty_eight_bytes_pass() {
        let store = [0x7b, 0x1a, 0xd0, 0xff, 0, 0, 0, 0];
        let load = [0x79, 0xa1, 0xd0, 0xff, 0, 0, 0, 0];
        let code = [[store, load], pointer(48)].concat();
        check("uprobe.s", code.as_flattened()).unwrap();
    }

    #[test]
    fn more_is_refused() {
        let store = [0x7b, 0x1a, 0xc8, 0xff, 0, 0, 0, 0];
        let load = [0x79, 0xa1, 0xc8, 0xff, 0, 0, 0, 0];
        let number = [0x62, 0x0a, 0xc8, 0xff, 1, 0, 0, 0];
        for instruction in [store, load, number] {
            refused(&[instruction], "56 bytes");
        }
        refused(&pointer(56), "56 bytes");
    }

    #[test]
    fn what_is_not_on_the_stack_does_not_count() {
        // `r1 = *(u64 *)(r2 - 56)`.
        let load = [0x79, 0x21, 0xc8, 0xff, 0, 0, 0, 0];
        check("uprobe.s", &load).unwrap();
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        refused(&pointer(8)[..1], "not understood");
        assert!(check("uprobe.s", &[0; 7]).is_err());
    }
}
