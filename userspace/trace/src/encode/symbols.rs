//! Names of functions to events.
//!
//! In: a symbol. Out: dial9's event for it. Never: a time.

use super::Encoder;
use crate::symbols::Symbol;
use crate::wire::SymbolTableEntry;

impl Encoder {
    /// Appends a name.
    pub(crate) fn symbol(&mut self, symbol: &Symbol<'_>) {
        let Symbol {
            address,
            depth,
            name,
            file,
            line,
        } = *symbol;
        let symbol_name = self.wire.intern_string_infallible(name);
        let source_file = self.wire.intern_string_infallible(file);
        self.wire.write_infallible(&SymbolTableEntry {
            ts_ns: 0,
            addr: address,
            size: 0,
            symbol_name,
            inline_depth: depth,
            source_file,
            source_line: line,
        });
    }
}
