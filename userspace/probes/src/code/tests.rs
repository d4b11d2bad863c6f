use super::*;
use crate::plan::InstructionClass::{Emulated, EmulatedStack, SingleStepped};

fn only(bytes: &[u8]) -> Instruction {
    let instruction = Decoder::with_ip(64, bytes, 0x1000, DecoderOptions::NONE).decode();
    assert!(
        !instruction.is_invalid() && instruction.len() == bytes.len(),
        "{bytes:x?}"
    );
    instruction
}

#[track_caller]
fn check(bytes: &[u8], expected: Option<InstructionClass>) {
    assert_eq!(class_of(bytes, &only(bytes)), expected, "{bytes:x?}");
}

#[test]
fn branches_and_short_nops_are_emulated() {
    check(&[0x90], Some(Emulated));
    check(&[0x66, 0x90], Some(Emulated));
    check(&[0xeb, 0x10], Some(Emulated));
    check(&[0xe9, 0, 1, 0, 0], Some(Emulated));
    check(&[0x75, 0xf0], Some(Emulated));
    check(&[0x0f, 0x84, 0, 1, 0, 0], Some(Emulated));
}

#[test]
fn pushes_and_calls_are_emulated_on_the_stack() {
    check(&[0x55], Some(EmulatedStack));
    check(&[0x41, 0x57], Some(EmulatedStack));
    check(&[0xe8, 0, 1, 0, 0], Some(EmulatedStack));
    check(&[0x67, 0xe8, 0, 1, 0, 0], Some(EmulatedStack));
}

#[test]
fn the_rest_is_single_stepped() {
    check(&[0x48, 0x89, 0xfb], Some(SingleStepped)); // mov rbx,rdi
    check(&[0x48, 0x83, 0xec, 0x18], Some(SingleStepped)); // sub rsp,24
    check(&[0xc3], Some(SingleStepped));
    check(&[0xf3, 0x0f, 0x1e, 0xfa], Some(SingleStepped)); // endbr64
    check(&[0xff, 0x10], Some(SingleStepped)); // call [rax]
    check(&[0xff, 0x25, 0, 1, 0, 0], Some(SingleStepped)); // jmp [rip+256]
    check(&[0x48, 0x55], Some(SingleStepped)); // push rbp, needless REX
    check(&[0x41, 0x90], Some(SingleStepped)); // xchg r8,rax
    check(&[0xf3, 0x90], Some(SingleStepped)); // pause
    check(&[0x0f, 0x1f, 0x40, 0], Some(SingleStepped)); // four-byte nop
    check(
        &[0x64, 0x48, 0x8b, 0x04, 0x25, 0, 0, 0, 0],
        Some(SingleStepped),
    ); // mov rax,fs:[0]
}

#[test]
fn what_the_kernel_refuses_is_not_usable() {
    check(&[0xf0, 0x48, 0x0f, 0xb1, 0x0f], None); // lock cmpxchg [rdi],rcx
    check(&[0x66, 0x2e, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0], None); // cs nop
    check(&[0x66, 0x66, 0x2e, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0], None); // data16 cs nop
    check(&[0x3e, 0xff, 0xe0], None); // notrack jmp rax
    check(&[0x26, 0x48, 0x8b, 0x07], None); // es mov
    check(&[0xcc], None); // int3
    check(&[0x0f, 0x0b], None); // ud2
    check(&[0x0f, 0x05], None); // syscall
    check(&[0xf4], None); // hlt
    check(&[0x8e, 0xd0], None); // mov ss,eax
    check(&[0x62, 0xf1, 0x7c, 0x48, 0x28, 0xc1], None); // EVEX: vmovaps zmm0,zmm1
}

#[test]
fn five_byte_nops_and_prefixed_branches_are_not_usable() {
    check(&[0x0f, 0x1f, 0x44, 0, 0], None);
    check(&[0x66, 0x0f, 0x1f, 0x40, 0], None);
    check(&[0xf2, 0xe9, 0, 1, 0, 0], None); // bnd jmp
    check(&[0xe3, 0x10], None); // jrcxz
}

#[test]
fn holders_follow_copies_and_end_at_writes() {
    let mut effects = Effects::new();
    let rdi = RegisterSet::only(Register::RDI);
    let both = effects.step(&only(&[0x48, 0x89, 0xfb]), rdi); // mov rbx,rdi
    assert!(both.contains(3) && both.contains(7));
    let after_call = effects.step(&only(&[0xe8, 0, 1, 0, 0]), both);
    assert_eq!(after_call.first(), Some(Register(3)));
    let overwritten = effects.step(&only(&[0x31, 0xdb]), after_call); // xor ebx,ebx
    assert_eq!(overwritten.first(), None);
    let narrow = effects.step(&only(&[0x89, 0xfb]), rdi); // mov ebx,edi is no copy
    assert!(!narrow.contains(3));
}

#[test]
fn instructions_read_as_in_a_disassembly() {
    let text = |bytes: &[u8]| text(&only(bytes));
    assert_eq!(text(&[0xe9, 0xcb, 0x5e, 0x06, 0]), "jmp 0x66ed0");
    assert_eq!(text(&[0x75, 0xf0]), "jne 0xff2");
    assert_eq!(text(&[0x55]), "push rbp");
    assert_eq!(text(&[0xff, 0x50, 0x18]), "call qword ptr [rax+0x18]");
    assert_eq!(text(&[0x48, 0x83, 0xec, 0x18]), "sub rsp, 0x18");
}
