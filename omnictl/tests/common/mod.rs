//! A daemon for tests: a real HTTP server on a real Unix socket with prepared answers, and the program under test.

#![allow(dead_code, reason = "each test program uses a part of it")]
#![allow(clippy::unwrap_used, reason = "a helper of tests fails as a test does")]

use std::collections::HashMap;
use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Frame, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::UnixListener;
use tokio::sync::oneshot;

/// A prepared answer to a request. Several for one route are sent in order, the last one repeatedly.
#[derive(Clone)]
pub(crate) struct Canned {
    status: u16,
    media_type: &'static str,
    body: Bytes,
    /// The body is never finished.
    hangs: bool,
}

impl Canned {
    pub(crate) fn json(value: &impl serde::Serialize) -> Self {
        Self::of(200, "application/json", serde_json::to_vec(value).unwrap())
    }

    pub(crate) fn problem(status: u16, kind: &str, detail: &str) -> Self {
        let problem = serde_json::json!({"type": kind, "title": "-", "status": status, "detail": detail});
        Self::of(status, "application/problem+json", problem.to_string())
    }

    pub(crate) fn of(status: u16, media_type: &'static str, body: impl Into<Bytes>) -> Self {
        Self { status, media_type, body: body.into(), hangs: false }
    }

    /// The same, and then nothing, without an end.
    pub(crate) fn hanging(self) -> Self {
        Self { hangs: true, ..self }
    }
}

/// A request that the daemon received.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Received {
    pub(crate) line: String,
    pub(crate) headers: HashMap<String, String>,
    pub(crate) body: Vec<u8>,
}

type Answers = Arc<Mutex<HashMap<String, Vec<Canned>>>>;
type Requests = Arc<Mutex<Vec<Received>>>;

/// The daemon. Ends with its value.
pub(crate) struct Daemon {
    directory: tempfile::TempDir,
    answers: Answers,
    requests: Requests,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Daemon {
    pub(crate) fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let (answers, requests) = (Answers::default(), Requests::default());
        let (stop, stopped) = oneshot::channel();
        let listener = std::os::unix::net::UnixListener::bind(directory.path().join("control.sock")).unwrap();
        listener.set_nonblocking(true).unwrap();
        let (shared_answers, shared_requests) = (answers.clone(), requests.clone());
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let listener = UnixListener::from_std(listener).unwrap();
                tokio::select! {
                    _ = stopped => {}
                    () = serve(listener, shared_answers, shared_requests) => {}
                }
            });
        });
        Self { directory, answers, requests, stop: Some(stop), thread: Some(thread) }
    }

    /// Sets what is said to `METHOD /route`, in the order of the calls.
    pub(crate) fn on(&self, route: &str, answer: Canned) -> &Self {
        self.answers.lock().unwrap().entry(route.to_owned()).or_default().push(answer);
        self
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.directory.path().join("control.sock")
    }

    /// Requests so far.
    pub(crate) fn requests(&self) -> Vec<Received> {
        self.requests.lock().unwrap().clone()
    }

    /// The program, connected to this daemon.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = omnictl(arguments);
        command.env("OMNI_SOCKET", self.socket());
        command
    }

    /// Runs the program to its end and returns all of its output.
    pub(crate) fn run(&self, arguments: &[&str]) -> String {
        let output = self.command(arguments).output().unwrap();
        report(&output, self.directory.path(), "[DIR]")
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            if !std::thread::panicking() {
                ended.unwrap();
            }
        }
    }
}

async fn serve(listener: UnixListener, answers: Answers, requests: Requests) {
    while let Ok((stream, _)) = listener.accept().await {
        let (answers, requests) = (answers.clone(), requests.clone());
        let service = service_fn(move |request| answer(request, answers.clone(), requests.clone()));
        // A client that goes away early is part of the tests.
        tokio::spawn(async { drop(http1::Builder::new().serve_connection(TokioIo::new(stream), service).await) });
    }
}

async fn answer(
    request: Request<Incoming>,
    answers: Answers,
    requests: Requests,
) -> Result<Response<Said>, Infallible> {
    let line = format!("{} {}", request.method(), request.uri());
    let headers = request.headers().iter();
    let headers = headers.map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned())).collect();
    let body = request.into_body().collect().await.unwrap().to_bytes().to_vec();
    requests.lock().unwrap().push(Received { line: line.clone(), headers, body });
    let canned = {
        let mut answers = answers.lock().unwrap();
        match answers.get_mut(&line) {
            Some(list) if list.len() > 1 => list.remove(0),
            Some(list) => list[0].clone(),
            None => Canned::problem(404, "no-such-route", &format!("nothing is canned for {line}")),
        }
    };
    let mut answer = Response::new(Said { body: Full::new(canned.body), hangs: canned.hangs });
    *answer.status_mut() = StatusCode::from_u16(canned.status).unwrap();
    answer.headers_mut().insert("content-type", canned.media_type.parse().unwrap());
    Ok(answer)
}

/// A body that may never end.
struct Said {
    body: Full<Bytes>,
    hangs: bool,
}

impl Body for Said {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match std::pin::Pin::new(&mut self.body).poll_frame(cx) {
            std::task::Poll::Ready(None) if self.hangs => std::task::Poll::Pending,
            said => said,
        }
    }
}

/// The program with a bare environment.
pub(crate) fn omnictl(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_omnictl"));
    command.args(arguments).env_remove("OMNI_SOCKET").env("NO_COLOR", "1").env_remove("COLUMNS");
    command
}

/// Exit code, standard output and standard error as one text, with a path replaced by a name for it.
pub(crate) fn report(output: &Output, path: &Path, name: &str) -> String {
    let code = output.status.code().map_or_else(|| output.status.to_string(), |code| code.to_string());
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    format!("exit {code}\n--- stdout\n{stdout}--- stderr\n{stderr}").replace(path.to_str().unwrap(), name)
}
