//! A program that loads and unloads libraries with services in them.
//!
//! In: words of the test. Out: calls. Never: a thread that keeps a library loaded: each
//! call has a thread of its own, which is over with the call.
//!
//! `load PATH`, `begin N`, `work N`, `stop N`, `write N FILE`, `unload N`, each with the number of
//! the library in the order of loading, and `exit`; each is answered by its first word.

#![expect(unsafe_code, reason = "it calls what it has loaded")]

use std::{path::Path, thread};

use libloading::{Library, Symbol};

use crate::{quiet, script};

/// What a number stands for.
pub trait Serve: Send + Sync {
    /// Forgets what was counted so far.
    fn begin(&self);
    /// Works.
    fn work(&self);
    /// Writes what was counted.
    fn write(&self, path: &Path);
    /// Ends its runtime.
    fn stop(&self);
    /// Unloads it.
    fn unload(self: Box<Self>);
}

/// A library.
#[derive(Debug)]
struct Plugin(Library);

impl Plugin {
    fn load(path: &str) -> Self {
        // SAFETY: the library of the test's.
        let plugin = Self(unsafe { Library::new(path) }.expect("it is there"));
        plugin.call(b"plugin_start");
        plugin
    }

    fn call(&self, name: &[u8]) {
        // SAFETY: it is of this type.
        let function: Symbol<'_, extern "C" fn()> =
            unsafe { self.0.get(name) }.expect("it has the function");
        function();
    }
}

impl Serve for Plugin {
    fn begin(&self) {
        self.call(b"plugin_begin");
    }

    fn work(&self) {
        self.call(b"plugin_work");
    }

    fn write(&self, path: &Path) {
        let path = path.to_str().expect("text");
        // SAFETY: it is of this type, and the path is text.
        unsafe {
            let function: Symbol<'_, unsafe extern "C" fn(*const u8, usize)> =
                self.0.get(b"plugin_write").expect("it has the function");
            function(path.as_ptr(), path.len());
        }
    }

    fn stop(&self) {
        self.call(b"plugin_stop");
    }

    fn unload(self: Box<Self>) {
        self.0.close().expect("it was loaded");
    }
}

/// Hears words until `exit`; `own` is number 0, where there is one.
///
/// # Panics
///
/// When a word is none of these.
pub fn serve(own: Option<Box<dyn Serve>>) {
    let mut services: Vec<Option<Box<dyn Serve>>> = own.map(Some).into_iter().collect();
    quiet::wait_until_idle();
    script::say_ready();
    loop {
        let heard = script::hear();
        let mut words = heard.split_whitespace();
        let word = words.next().unwrap_or_default();
        let mut argument = || words.next().expect("it has an argument");
        match word {
            "exit" => return,
            "load" => {
                let path = argument();
                let load = || Box::new(Plugin::load(path)) as Box<dyn Serve>;
                services.push(Some(apart(load)));
            }
            _ => {
                let number: usize = argument().parse().expect("a number");
                let service = &mut services[number];
                let there = || service.as_ref().expect("it is there");
                match word {
                    "begin" => apart(|| there().begin()),
                    "work" => apart(|| there().work()),
                    "write" => {
                        let path = Path::new(argument());
                        apart(|| there().write(path));
                    }
                    "stop" => apart(|| there().stop()),
                    "unload" => {
                        let service = service.take().expect("it is there");
                        apart(|| service.unload());
                    }
                    _ => panic!("{heard:?}"),
                }
            }
        }
        quiet::wait_until_idle();
        script::say(word);
    }
}

fn apart<R: Send>(call: impl FnOnce() -> R + Send) -> R {
    thread::scope(|scope| scope.spawn(call).join().expect("it does not panic"))
}
