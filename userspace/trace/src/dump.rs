//! Raw records in a file, for benchmarks and bug reports.
//!
//! In: ring entries as they came, with their CPU. Out: a file of
//! `[cpu u16][length u16][bytes]`, integers in the machine's order, that
//! [`entries`] reads back. Never: part of a trace; nothing else reads it.

use std::io::{self, Write};

/// Writes ring entries to `W`.
#[derive(Debug)]
pub struct RecordDump<W> {
    out: W,
}

impl<W: Write> RecordDump<W> {
    /// A dump that begins at the writer's position.
    pub fn new(out: W) -> Self {
        Self { out }
    }

    /// Appends one entry.
    ///
    /// # Errors
    ///
    /// Those of the writer; an entry longer than 65,535 bytes, or a CPU above,
    /// is [`io::ErrorKind::InvalidInput`].
    pub fn entry(&mut self, cpu: u32, bytes: &[u8]) -> io::Result<()> {
        let too_large = |_| io::Error::from(io::ErrorKind::InvalidInput);
        let cpu = u16::try_from(cpu).map_err(too_large)?;
        let length = u16::try_from(bytes.len()).map_err(too_large)?;
        self.out.write_all(&cpu.to_ne_bytes())?;
        self.out.write_all(&length.to_ne_bytes())?;
        self.out.write_all(bytes)
    }

    /// Ends the dump.
    ///
    /// # Errors
    ///
    /// Those of the writer's flush.
    pub fn finish(mut self) -> io::Result<W> {
        self.out.flush()?;
        Ok(self.out)
    }
}

/// The entries of a dump, with their CPU; ends at a torn one.
pub fn entries(mut dump: &[u8]) -> impl Iterator<Item = (u32, &[u8])> {
    std::iter::from_fn(move || {
        let (&[c0, c1, l0, l1], rest) = dump.split_first_chunk::<4>()?;
        let length = u16::from_ne_bytes([l0, l1]).into();
        let (bytes, rest) = rest.split_at_checked(length)?;
        dump = rest;
        Some((u16::from_ne_bytes([c0, c1]).into(), bytes))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_come_back_and_a_torn_one_ends_the_dump() {
        let mut dump = RecordDump::new(Vec::new());
        dump.entry(0, b"12345678").unwrap();
        dump.entry(3, b"").unwrap();
        assert!(dump.entry(1 << 16, b"").is_err());
        let mut bytes = dump.finish().unwrap();
        let whole: Vec<_> = entries(&bytes).collect();
        assert_eq!(whole, [(0, &b"12345678"[..]), (3, &b""[..])]);
        bytes.extend([1, 0, 9, 0, 1]);
        assert_eq!(entries(&bytes).count(), 2);
    }
}
