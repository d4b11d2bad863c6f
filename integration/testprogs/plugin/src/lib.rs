//! A Tokio service in a library.
//!
//! In: calls of its host. Out: counted work on a runtime of its own. Never: anything
//! shared with its host's Tokio or another plugin's.

#![expect(unsafe_code, reason = "what a host calls has a name")]

use std::{
    path::Path,
    slice, str,
    sync::{Mutex, MutexGuard, PoisonError},
};

use testprogs::{count, service::Service};

static SERVICE: Mutex<Option<Service>> = Mutex::new(None);

fn service() -> MutexGuard<'static, Option<Service>> {
    SERVICE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts the runtime, with tasks that wait.
#[unsafe(no_mangle)]
pub extern "C" fn plugin_start() {
    *service() = Some(Service::start());
}

/// Forgets what was counted so far.
#[unsafe(no_mangle)]
pub extern "C" fn plugin_begin() {
    count::begin();
}

/// Works, to the end.
#[unsafe(no_mangle)]
pub extern "C" fn plugin_work() {
    service().as_ref().expect("it is started").work();
}

/// Writes what was counted into a file.
///
/// # Safety
///
/// `path` is UTF-8 of `bytes` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn plugin_write(path: *const u8, bytes: usize) {
    // SAFETY: as above.
    let path = str::from_utf8(unsafe { slice::from_raw_parts(path, bytes) });
    let path = Path::new(path.expect("the host's"));
    count::write_truth(path).expect("the file can be written");
}

/// Ends the runtime, with its threads.
#[unsafe(no_mangle)]
pub extern "C" fn plugin_stop() {
    service().take().expect("it is started").stop();
}
