//! What the network answered to a put.
//!
//! In: the HTTP calls of one task. Out: the outcome of its last one.
//! Never: a change to a call. `object_store` tells the status of few failures;
//! this tells it of all.

use std::cell::Cell;
use std::future::Future;

use async_trait::async_trait;
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpRequest, HttpResponse, HttpService, ReqwestConnector,
};

/// The last call of a put, which may be one for credentials.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Answer {
    /// Nobody was called.
    #[default]
    NotAsked,
    /// The call failed.
    NoReply,
    /// Status of the answer.
    Status(u16),
}

tokio::task_local! {
    static ANSWER: Cell<Answer>;
}

/// Runs a put, and tells the last answer beside its result.
pub(super) async fn listen<T>(put: impl Future<Output = T>) -> (T, Answer) {
    let listening = async {
        let result = put.await;
        (result, ANSWER.with(Cell::get))
    };
    ANSWER.scope(Cell::default(), listening).await
}

/// Connects as `object_store` does, and notes what is answered.
#[derive(Debug)]
pub(super) struct NotingConnector;

impl HttpConnector for NotingConnector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let client = ReqwestConnector::default().connect(options)?;
        Ok(HttpClient::new(Noting(client)))
    }
}

#[derive(Debug)]
struct Noting(HttpClient);

#[async_trait]
impl HttpService for Noting {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        note(Answer::NoReply);
        let answer = self.0.execute(request).await;
        if let Ok(response) = &answer {
            note(Answer::Status(response.status().as_u16()));
        }
        answer
    }
}

/// Outside of a put there is nobody to tell.
fn note(answer: Answer) {
    let _ = ANSWER.try_with(|noted| noted.set(answer));
}
