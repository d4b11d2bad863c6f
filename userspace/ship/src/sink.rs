//! Where segments go.
//!
//! In: objects. Out: each whole at its key, or why not. Never: a retry, a
//! decision about the file that an object came from.

use std::error::Error;
use std::future::Future;

use bytes::Bytes;

use crate::retry::Verdict;

mod answer;
mod destination;
mod store;

pub use destination::{Destination, DestinationError};
pub use store::{OpenError, StoreOptions, StoreSink};

/// One segment on its way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Object {
    /// Its key.
    pub key: String,
    /// Its media type.
    pub content_type: &'static str,
    /// What else is said of it; values are visible ASCII.
    pub metadata: Vec<(&'static str, String)>,
    /// Its content.
    pub bytes: Bytes,
}

/// A place that takes objects.
pub trait Sink: Send + Sync + 'static {
    /// Puts an object, all of it or nothing, over one that has its key.
    fn put(&self, object: Object) -> impl Future<Output = Result<(), PutError>> + Send;

    /// A number for the credentials in use, another one for others. `None` when
    /// there are none, or none that can be told apart.
    fn credentials(&self) -> impl Future<Output = Option<u64>> + Send;
}

/// A put that failed.
#[derive(Debug, thiserror::Error)]
#[error("{}", self.what())]
pub struct PutError {
    /// Whether the same put may succeed later.
    pub retryable: bool,
    /// The status of the answer, when there was one.
    pub status: Option<u16>,
    /// The error code of S3 in the answer.
    pub code: Option<String>,
    /// The cause.
    pub source: Box<dyn Error + Send + Sync>,
}

/// What a failure is counted as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureClass {
    /// No answer: the connection failed or took too long.
    Transport,
    /// An answer to slow down: 429 and 503.
    Throttled,
    /// Any other answer of 5xx, and what else passes.
    Server,
    /// An answer that does not pass by itself.
    Refused,
}

impl PutError {
    fn what(&self) -> String {
        match (self.status, &self.code) {
            (Some(status), Some(code)) => format!("the store answered {status} {code}"),
            (Some(status), None) => format!("the store answered {status}"),
            (None, _) if self.retryable => "the store did not answer".to_owned(),
            (None, _) => "the store cannot be asked".to_owned(),
        }
    }

    /// What it is counted as.
    pub fn class(&self) -> FailureClass {
        match self.status {
            _ if !self.retryable => FailureClass::Refused,
            None => FailureClass::Transport,
            Some(429 | 503) => FailureClass::Throttled,
            Some(_) => FailureClass::Server,
        }
    }

    /// What it says of the puts to come.
    pub fn verdict(&self) -> Verdict {
        if self.retryable {
            return Verdict::Passing;
        }
        let is_of_object = matches!(self.status, Some(409 | 411..=414 | 422 | 431))
            || matches!(
                self.code.as_deref(),
                Some("EntityTooLarge" | "KeyTooLongError" | "MetadataTooLarge" | "BadDigest")
            );
        if is_of_object {
            Verdict::Rejected
        } else {
            Verdict::Refused
        }
    }

    /// The message with those of its causes.
    pub fn chain(&self) -> String {
        let mut text = self.to_string();
        let mut cause: Option<&dyn Error> = Some(&*self.source);
        while let Some(error) = cause {
            let message = error.to_string();
            // Most of these repeat what is under them.
            if !text.contains(&message) {
                text.push_str(": ");
                text.push_str(&message);
            }
            cause = error.source();
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(retryable: bool, status: Option<u16>, code: Option<&str>) -> PutError {
        PutError {
            retryable,
            status,
            code: code.map(ToOwned::to_owned),
            source: "cause".into(),
        }
    }

    #[test]
    fn verdicts_and_classes() {
        use FailureClass::{Refused, Server, Throttled, Transport};
        for (retryable, status, code, class, verdict) in [
            (true, None, None, Transport, Verdict::Passing),
            (true, Some(503), None, Throttled, Verdict::Passing),
            (true, Some(429), None, Throttled, Verdict::Passing),
            (true, Some(500), None, Server, Verdict::Passing),
            (false, Some(403), None, Refused, Verdict::Refused),
            (false, Some(404), None, Refused, Verdict::Refused),
            (false, Some(301), None, Refused, Verdict::Refused),
            (false, None, None, Refused, Verdict::Refused),
            (false, Some(413), None, Refused, Verdict::Rejected),
            (
                false,
                Some(400),
                Some("EntityTooLarge"),
                Refused,
                Verdict::Rejected,
            ),
            (
                false,
                Some(400),
                Some("ExpiredToken"),
                Refused,
                Verdict::Refused,
            ),
        ] {
            let error = error(retryable, status, code);
            assert_eq!(
                (error.class(), error.verdict()),
                (class, verdict),
                "{error}"
            );
        }
    }

    #[test]
    fn messages_name_the_answer_once() {
        assert_eq!(
            error(false, Some(403), Some("AccessDenied")).chain(),
            "the store answered 403 AccessDenied: cause"
        );
        assert_eq!(
            error(true, None, None).to_string(),
            "the store did not answer"
        );
    }
}
