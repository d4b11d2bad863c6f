# What fills the program up: functions that nobody calls, each with calls, unwind
# information and a symbol; constants; and words that point to both.
    .intel_syntax noprefix

    .macro padding_function
    .p2align 4
_ZN5large7padding8function17h0123456789abcdefE.\@:
    .type _ZN5large7padding8function17h0123456789abcdefE.\@, @function
    .cfi_startproc
    push rbx
    .cfi_def_cfa_offset 16
    .cfi_offset rbx, -16
    mov rbx, rdi
    .rept 8
    mov rax, qword ptr [rbx + 16]
    lea rdi, padding_constants[rip]
    mov rsi, rbx
    xor edx, edx
    test rax, rax
    je 2f
    call padding_first
2:
    add rbx, 8
    .endr
    pop rbx
    .cfi_def_cfa_offset 8
    ret
    .cfi_endproc
    .size _ZN5large7padding8function17h0123456789abcdefE.\@, . - _ZN5large7padding8function17h0123456789abcdefE.\@
    .endm

    .section .text.padding, "ax", @progbits
    .p2align 4
padding_first:
    .rept 150000
    padding_function
    .endr

    .section .rodata.padding, "a", @progbits
    .p2align 4
padding_constants:
    .fill 1500000, 8, 0x21212121212121

    .section .data.rel.ro.padding, "aw", @progbits
    .p2align 4
    .globl padding_words
padding_words:
    .set padding_at, 0
    .rept 250000
    .quad padding_first + padding_at
    .quad 8
    .quad padding_constants
    .set padding_at, padding_at + 64
    .endr

    .section .note.GNU-stack, "", @progbits
