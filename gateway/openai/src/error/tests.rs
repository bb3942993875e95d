//! Table of all failures as error responses.

use super::*;
use omni_request_error::{BuildProgress, InvalidCode, InvalidRequest};
use std::time::Duration;

#[test]
fn the_failure_table() {
    let retry_after = Duration::from_millis(1200);
    let failures = [
        Failure::NoHost,
        Failure::UnknownHost { host: "attacker.example".into() },
        Failure::OtherSite,
        Failure::HeadTooLarge,
        Failure::BodyEncoded { encoding: "gzip".into() },
        Failure::NoSuchRoute,
        Failure::MethodNotAllowed { allowed: "POST" },
        Failure::Unauthorized,
        Failure::ModelNotAllowed,
        Failure::TooManyRequests { retry_after },
        Failure::NoSuchModel,
        Failure::NoSuchJob("file"),
        Failure::JobsFull("the node's space for batch jobs is used up: wait until files expire, or delete some"),
        Failure::JobsUnavailable,
        Failure::BadRequest("the client hung up".into()),
        InvalidRequest::new("temperature", "`temperature` is 3: it has to be from 0 to 2").into(),
        InvalidRequest::unsupported("seed", "this model does not support `seed`: leave it out").into(),
        InvalidRequest::missing("model").into(),
        InvalidRequest::new("messages", "the prompt is too long").with_code(InvalidCode::ContextLength).into(),
        Failure::BodyTimeout,
        Failure::BodyTooLarge { limit: 1024 },
        Failure::QueueFull { retry_after },
        Failure::NodeBusy,
        Failure::UploadsFull,
        Failure::UsageNotKept,
        Failure::AnswerNotKept,
        Failure::CannotStart { retry_after },
        Failure::NoRoom { retry_after },
        Failure::NeverRoom,
        Failure::NoGpuMemory { retry_after },
        Failure::NoFittingGpu,
        Failure::ShuttingDown,
        Failure::Died,
        Failure::SuccessorDied,
        Failure::Deadline,
        Failure::DeadlineBuilding { build: BuildProgress::Queued },
        Failure::Raised,
        Failure::AnswerNotSendable("the header `date` is the node's to set".into()),
        Failure::Handler { status: 422, message: "no".into() },
        Failure::Handler { status: 429, message: "not so fast".into() },
        Failure::Handler { status: 503, message: "later".into() },
        Failure::Cancelled,
    ];
    let mut table = String::new();
    for failure in failures {
        let response = error_response(&failure);
        let header = |name: &str| response.headers().get(name).map_or("-", |v| v.to_str().unwrap()).to_owned();
        table += &format!(
            "{} retry-after={} should-retry={} omni-retry={} {}\n",
            response.status().as_u16(),
            header("retry-after"),
            header("x-should-retry"),
            header("x-omni-retry"),
            String::from_utf8_lossy(response.body()),
        );
    }
    insta::assert_snapshot!(table);
}
