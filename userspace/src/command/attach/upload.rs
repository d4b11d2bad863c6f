//! Where segments are put: what the command line and dial9's environment say.

use std::ffi::OsString;

use dial9_bpf_ship::{
    courier::Upload,
    identity::{ENV_BUCKET, ENV_PREFIX, destination_of_env},
    rate::Rate,
    sink::{StoreOptions, StoreSink},
};
use dial9_bpf_trace::clock::Anchor;

use crate::args::RecordArgs;

/// The store that segments go to, and its name.
pub(super) fn of(args: &RecordArgs) -> anyhow::Result<Option<(Upload<StoreSink>, String)>> {
    let env = |name| std::env::var(name).ok();
    let of_env = || destination_of_env(env(ENV_BUCKET).as_deref(), env(ENV_PREFIX).as_deref());
    let Some(destination) = args.upload.clone().or_else(of_env) else {
        return Ok(None);
    };
    let utf8 = |(name, value): (OsString, OsString)| {
        Some((name.into_string().ok()?, value.into_string().ok()?))
    };
    let env = std::env::vars_os().filter_map(utf8);
    let sink = StoreSink::open(&destination, &StoreOptions::default(), env)?;
    let mut upload = Upload::to(sink, destination.prefix(), Anchor::read().unix_ns);
    upload.rate = args.upload_rate.map(Rate::new);
    Ok(Some((upload, destination.to_string())))
}
