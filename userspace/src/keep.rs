//! A recording that goes on where a killed recorder's stopped.
//!
//! In: a target, and what is kept of it in the kernel. Out: a tracer, new or taken
//! over; the time at which its first segment begins. Never: something removed
//! without a line that says so.

use std::fmt;

use dial9_bpf_abi::loss::LossCause;
use dial9_bpf_attach::{
    AttachError, Object, Options, Target, Tracer,
    keep::{self, Dropped, Found, Place},
    tracer,
};
use dial9_bpf_trace::{
    clock::Anchor,
    line::Line,
    loss::{Cause, Loss},
    metadata,
    recover::Recorded,
};

use crate::stderr;

/// A tracer, and what it is to outlive its recorder.
#[derive(Debug)]
pub(crate) enum Start {
    /// One that nobody takes over.
    Unkept(Tracer),
    /// One to be attached and then kept.
    New(Tracer, Place),
    /// One that is attached, and the time before which everything is in files.
    TakenOver(Tracer, u64),
}

impl Start {
    /// Takes over what there is of the target, or loads anew.
    ///
    /// # Errors
    /// Those of [`Tracer::load`] and [`Place::take`].
    pub(crate) fn of(
        target: &Target,
        objects: &[Object],
        options: Options,
        keeps: bool,
    ) -> Result<Self, AttachError> {
        if !keeps {
            if let Some(dropped) = keep::drop_left(target) {
                removed(dropped, "without --keep-rings nothing is taken over");
            }
            return Tracer::load(target, options).map(Self::Unkept);
        }
        let place = match Place::take(target, objects, options)? {
            Found::Tracer(tracer, until_ns) => return Ok(Self::TakenOver(*tracer, until_ns)),
            Found::Nothing(place) => place,
            Found::Other(place, dropped, reason) => {
                removed(dropped, &reason);
                place
            }
        };
        Ok(Self::New(Tracer::load(target, options)?, place))
    }

    /// The tracer.
    pub(crate) fn tracer(&mut self) -> &mut Tracer {
        match self {
            Self::Unkept(tracer) | Self::New(tracer, _) | Self::TakenOver(tracer, _) => tracer,
        }
    }

    /// When the first segment begins, where the segments found say how far their
    /// recorders came: a killed one may have written more than it has noted down.
    pub(crate) fn begins(&mut self, found: &[Recorded], target: &metadata::Target) -> Anchor {
        let now = Anchor::read();
        let Self::TakenOver(tracer, noted_ns) = self else {
            return now;
        };
        let found = found.iter().filter(|recorded| recorded.is_of(target));
        let found_ns = found.map(|recorded| recorded.until_ns).max();
        match found_ns.filter(|found_ns| *found_ns > *noted_ns) {
            Some(found_ns) => {
                tracer.skip_before(found_ns);
                now.at(found_ns)
            }
            None => now.at(*noted_ns),
        }
    }

    /// Leaves what was taken over to the next recorder.
    pub(crate) fn leave(self) {
        if let Self::TakenOver(tracer, _) = self {
            tracer.leave();
        }
    }
}

/// Removes what is kept of processes that are gone.
pub(crate) fn drop_stale() {
    for dropped in keep::drop_stale() {
        removed(dropped, "the process is gone");
    }
}

fn removed(Dropped { pid, records, lost }: Dropped, reason: impl fmt::Display) {
    stderr::say(format_args!(
        "removed what a recorder had kept of process {pid}: {reason}; \
         {records} records were not read, {lost} hits were lost"
    ));
}

/// What is in the line's file need not be in the rings any more.
pub(crate) fn settle(line: &Line, tracer: &mut Tracer) {
    let losses = line.losses();
    tracer.settle(line.released_ns(), losses.iter().filter_map(told));
}

/// What closed segments tell of a loss.
fn told(loss: &Loss) -> Option<tracer::Loss> {
    let Cause::Kernel(number) = loss.cause else {
        return None;
    };
    let cause = LossCause::ALL
        .into_iter()
        .find(|cause| *cause as u32 == number)?;
    Some(tracer::Loss {
        cpu: loss.cpu,
        kind: loss.kind,
        cause,
        lost: loss.total - loss.lost,
    })
}
