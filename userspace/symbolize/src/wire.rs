//! What the helper is asked, and what it answers.
//!
//! In: addresses; answers. Out: their bytes, and back. Never: more of an answer than the
//! limits, whatever comes.

use std::io::{self, Read, Write};

use crate::{Answer, Function, Unnamed};

/// Longest name and longest path, bytes; the rest of a longer one is cut.
pub(crate) const MAX_TEXT_BYTES: usize = 4 << 10;
/// Most functions at an address; the innermost of more are left out.
pub(crate) const MAX_FUNCTIONS: usize = 255;
/// Most addresses that are asked about at once.
pub(crate) const MAX_ADDRESSES: usize = 1 << 18;

/// What to look in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// The symbol tables of the helper's file.
    Symbols,
    /// Those, and its debug information.
    DebugInfo,
    /// The running kernel.
    Kernel,
}

/// Reasons that the helper may answer with, by their number on the wire less one.
const REASONS: [Unnamed; 4] = [
    Unnamed::NoSymbols,
    Unnamed::NoSymbol,
    Unnamed::Broken,
    Unnamed::KernelHidden,
];

pub(crate) fn write_request(
    mut to: impl Write,
    source: Source,
    addresses: &[u64],
) -> io::Result<()> {
    let count = u32::try_from(addresses.len()).map_err(io::Error::other)?;
    let mut bytes = vec![source as u8];
    bytes.extend(count.to_le_bytes());
    bytes.extend(addresses.iter().flat_map(|address| address.to_le_bytes()));
    to.write_all(&bytes)
}

pub(crate) fn read_request(mut from: impl Read) -> io::Result<(Source, Vec<u64>)> {
    let source = match byte(&mut from)? {
        0 => Source::Symbols,
        1 => Source::DebugInfo,
        2 => Source::Kernel,
        _ => return Err(io::ErrorKind::InvalidData.into()),
    };
    let count = length(&mut from, MAX_ADDRESSES)?;
    let mut bytes = vec![0; count * 8];
    from.read_exact(&mut bytes)?;
    let (addresses, _) = bytes.as_chunks::<8>();
    let addresses = addresses.iter().map(|bytes| u64::from_le_bytes(*bytes));
    Ok((source, addresses.collect()))
}

pub(crate) fn write_answer(mut to: impl Write, answer: &Answer) -> io::Result<()> {
    let functions = match answer {
        Ok(functions) => functions,
        Err(reason) => {
            let number = REASONS.iter().position(|of| of == reason).unwrap_or(1);
            return to.write_all(&[u8::try_from(number + 1).map_err(io::Error::other)?, 0]);
        }
    };
    let count = functions.len().min(MAX_FUNCTIONS);
    to.write_all(&[0, u8::try_from(count).map_err(io::Error::other)?])?;
    for Function { name, file, line } in &functions[..count] {
        write_text(&mut to, name)?;
        write_text(&mut to, file)?;
        to.write_all(&line.to_le_bytes())?;
    }
    Ok(())
}

pub(crate) fn read_answer(mut from: impl Read) -> io::Result<Answer> {
    let [number, count] = [byte(&mut from)?, byte(&mut from)?];
    if let Some(reason) = usize::from(number).checked_sub(1) {
        let reason = REASONS.get(reason).ok_or(io::ErrorKind::InvalidData)?;
        return Ok(Err(*reason));
    }
    let functions = (0..count).map(|_| {
        Ok(Function {
            name: read_text(&mut from)?,
            file: read_text(&mut from)?,
            line: number_of(&mut from)?,
        })
    });
    let functions = functions.collect::<io::Result<Box<[Function]>>>()?;
    if functions.is_empty() {
        return Err(io::ErrorKind::InvalidData.into());
    }
    Ok(Ok(functions))
}

pub(crate) fn write_peak(mut to: impl Write, kib: u32) -> io::Result<()> {
    to.write_all(&kib.to_le_bytes())
}

pub(crate) fn read_peak(mut from: impl Read) -> io::Result<u32> {
    number_of(&mut from)
}

fn write_text(to: &mut impl Write, text: &str) -> io::Result<()> {
    let text = &text[..text.floor_char_boundary(MAX_TEXT_BYTES)];
    let count = u32::try_from(text.len()).map_err(io::Error::other)?;
    to.write_all(&count.to_le_bytes())?;
    to.write_all(text.as_bytes())
}

fn read_text(from: &mut impl Read) -> io::Result<Box<str>> {
    let mut bytes = vec![0; length(from, MAX_TEXT_BYTES)?];
    from.read_exact(&mut bytes)?;
    let text = String::from_utf8(bytes).map_err(io::Error::other)?;
    Ok(text.into_boxed_str())
}

fn length(from: &mut impl Read, limit: usize) -> io::Result<usize> {
    let length = usize::try_from(number_of(from)?).map_err(io::Error::other)?;
    if length > limit {
        return Err(io::ErrorKind::InvalidData.into());
    }
    Ok(length)
}

fn number_of(from: &mut impl Read) -> io::Result<u32> {
    let mut bytes = [0; 4];
    from.read_exact(&mut bytes)?;
    Ok(u32::from_le_bytes(bytes))
}

fn byte(from: &mut impl Read) -> io::Result<u8> {
    let mut byte = [0];
    from.read_exact(&mut byte)?;
    Ok(byte[0])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn function(name: &str, line: u32) -> Function {
        Function {
            name: name.into(),
            file: "src/main.rs".into(),
            line,
        }
    }

    #[test]
    fn what_is_written_is_read() {
        let mut bytes = Vec::new();
        write_request(&mut bytes, Source::DebugInfo, &[1, u64::MAX]).expect("to memory");
        let read = read_request(&bytes[..]).expect("whole");
        assert_eq!(read, (Source::DebugInfo, vec![1, u64::MAX]));
        let long = "é".repeat(MAX_TEXT_BYTES);
        let functions = [function("app::main", 3), function(&long, 0)];
        let answers: [Answer; 2] = [Ok(functions.into()), Err(Unnamed::NoSymbol)];
        let mut bytes = Vec::new();
        for answer in &answers {
            write_answer(&mut bytes, answer).expect("to memory");
        }
        let mut rest = &bytes[..];
        let named = read_answer(&mut rest).expect("whole").expect("named");
        assert_eq!(named[0], function("app::main", 3));
        assert_eq!(&*named[1].name, &long[..MAX_TEXT_BYTES]);
        assert_eq!(read_answer(&mut rest).expect("whole"), answers[1]);
        assert!(rest.is_empty());
    }

    #[test]
    fn no_answer_is_larger_than_the_limits() {
        let cut = read_answer(&[0, 1, 9][..]).expect_err("it ends");
        assert_eq!(cut.kind(), io::ErrorKind::UnexpectedEof);
        for bytes in [&[0, 0][..], &[9, 0], &[0, 1, 0xff, 0xff, 0xff, 0xff]] {
            let error = read_answer(bytes).expect_err("against the limits");
            assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{bytes:?}");
        }
    }
}
