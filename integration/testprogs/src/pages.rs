//! Functions that probe files name. They are in a package apart from the one that calls
//! them, so that the compiler does not change how arguments are passed.

use std::hint::black_box;

/// What a page is looked up by.
#[repr(C)]
pub struct Request {
    /// Which one.
    pub number: u64,
    /// Its key.
    pub key: [u8; 16],
    /// How deep it is.
    pub depth: i32,
}

/// The page of a tenant.
///
/// # Panics
///
/// Never: a key has eight bytes.
#[inline(never)]
pub fn get_page(tenant: u32, request: &Request) -> u64 {
    let word = u64::from_le_bytes(request.key[..8].try_into().expect("eight bytes"));
    black_box(word.wrapping_mul(3) ^ u64::from(tenant))
}

/// A text and its length.
#[inline(never)]
pub fn describe(text: &str, is_long: bool) -> usize {
    black_box(text.len() + usize::from(is_long))
}

/// A function that calls itself.
#[inline(never)]
pub fn depth(left: u32) -> u32 {
    if left == 0 {
        return black_box(0);
    }
    black_box(depth(left - 1)) + 1
}
