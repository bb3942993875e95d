//! A model as its task publishes it: state, instances, generations.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// State of a model, of one of its generations, or of an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// The model's environment is being built.
    Preparing,
    /// A process starts: sandbox, import, `setup`.
    Starting,
    /// Takes requests.
    Ready,
    /// Finishes its requests and then stops.
    Draining,
    /// No process; the next request starts one (unless it was stopped by hand).
    Stopped,
    /// Cannot serve now; see the message.
    Failed,
}

impl State {
    /// All states, in the order of a life.
    pub const ALL: [Self; 6] =
        [Self::Preparing, Self::Starting, Self::Ready, Self::Draining, Self::Stopped, Self::Failed];

    /// Name shown to people and in metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Preparing => "preparing",
            Self::Starting => "starting",
            Self::Ready => "ready",
            Self::Draining => "draining",
            Self::Stopped => "stopped",
            Self::Failed => "failed",
        }
    }
}

/// A model of the node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "ModelStatus")]
pub struct Model {
    /// The path below the models folder.
    pub name: String,
    /// Where it is in its life: that of the generation that takes the traffic.
    pub state: State,
    /// True if it was stopped by hand and waits for a `start`.
    pub held: bool,
    /// Digest of the content that takes the traffic, 64 hexadecimal digits; `None` without one.
    pub version: Option<String>,
    /// Digest that a rollback chose; ends with the next change of the directory.
    pub pinned: Option<String>,
    /// Content of the model's directory.
    pub directory: Directory,
    /// Reason for the state, where there is more to say: a build's own message, a traceback, an exit.
    pub message: Option<String>,
    /// Generations of the model: the serving one first, then the newest first.
    pub generations: Vec<Generation>,
    /// The running instances, the oldest first.
    pub instances: Vec<Instance>,
    /// Requests that run.
    pub in_flight: u64,
    /// Requests that wait.
    pub queued: u64,
    /// The most that may wait.
    pub queue_limit: u64,
    /// Deaths of instances since the node first saw the model.
    pub restarts: u64,
    /// How the last instance ended.
    pub last_exit: Option<String>,
    /// Why the last instance that did well was stopped, since this scheduler began.
    #[serde(default)]
    pub last_stop: Option<Stop>,
    /// Seconds until the next try, while it is in back-off or without a place.
    pub retry_in_seconds: Option<f64>,
    /// The last lines of an environment being built.
    pub build_log: Vec<String>,
}

impl Model {
    /// A model of which nothing is known but the name.
    #[must_use]
    pub fn unseen(name: String) -> Self {
        Self {
            name,
            state: State::Stopped,
            held: false,
            version: None,
            pinned: None,
            directory: Directory::default(),
            message: None,
            generations: Vec::new(),
            instances: Vec::new(),
            in_flight: 0,
            queued: 0,
            queue_limit: 0,
            restarts: 0,
            last_exit: None,
            last_stop: None,
            retry_in_seconds: None,
            build_log: Vec::new(),
        }
    }

    /// The generation of this version, if the node has to do with it.
    #[must_use]
    pub fn generation(&self, version: &str) -> Option<&Generation> {
        self.generations.iter().find(|generation| generation.version == version)
    }

    /// The generation that is to take the traffic next.
    #[must_use]
    pub fn candidate(&self) -> Option<&Generation> {
        self.generations.iter().find(|generation| generation.role == Role::Candidate)
    }
}

/// The stop of an instance that did well.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Stop {
    /// Cause of the stop.
    pub reason: StopReason,
    /// Why, for people.
    pub message: String,
    /// When, in milliseconds since 1970.
    pub unix_ms: u64,
}

/// Why the node stops an instance that does well.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum StopReason {
    /// No request for its `idle-timeout`.
    Idle,
    /// Another model needed its place.
    Displaced,
    /// The model was stopped by hand.
    Held,
    /// The model was restarted by hand.
    Restarted,
    /// Another version of the model took its place.
    Replaced,
    /// The model was removed, or the node shut down.
    Removed,
}

impl StopReason {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Idle, Self::Displaced, Self::Held, Self::Restarted, Self::Replaced, Self::Removed];

    /// Name on the wire, and in the log.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Displaced => "displaced",
            Self::Held => "held",
            Self::Restarted => "restarted",
            Self::Replaced => "replaced",
            Self::Removed => "removed",
        }
    }
}

/// Last known content of a model's directory.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Directory {
    /// Digest of its content; `None` when no snapshot could be taken.
    pub version: Option<String>,
    /// Why this content cannot be served: a wrong manifest, no snapshot.
    pub refused: Option<String>,
}

/// A version of a model: the content of its directory at some time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Generation {
    /// Digest of the content, 64 hexadecimal digits.
    pub version: String,
    /// Role of the generation in its model.
    pub role: Role,
    /// Where it is in its life.
    pub state: State,
    /// Reason for the state: its own traceback, a build's message, no room.
    pub message: Option<String>,
    /// Seconds until the next try, while it is in back-off or without a place.
    pub retry_in_seconds: Option<f64>,
    /// How the last preparation of its environment and weights went, whatever its instances do; none before this
    /// scheduler has asked for one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preparation: Option<Preparation>,
    /// Work of that preparation, once it is done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prepared: Option<Prepared>,
}

/// Work of a preparation that is done.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Prepared {
    /// Time from its request to its end, waits included.
    pub seconds: f64,
    /// Bytes of weights that were fetched meanwhile; zero if the node had them.
    pub fetched_bytes: u64,
    /// True if the environment was built meanwhile.
    pub built: bool,
}

/// Preparation of a generation: its environment is built and its weights are fetched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Preparation {
    /// Builds and fetches, or waits to.
    Underway,
    /// Both are on the node.
    Done,
    /// The environment or the weights cannot be had; see the message.
    Failed,
}

/// Role of a generation in its model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// Takes the traffic.
    Serving,
    /// Is being proven, and takes the traffic once ready. Failed: refused, while the serving generation goes on.
    Candidate,
    /// Took the traffic before; its instances drain, or a rollback can bring it back.
    Previous,
}

impl Role {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Serving, Self::Candidate, Self::Previous];

    /// Name shown to people.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Serving => "serving",
            Self::Candidate => "candidate",
            Self::Previous => "previous",
        }
    }
}

/// A running instance.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Instance {
    /// Twelve hexadecimal digits.
    pub id: String,
    /// Digest of the content that it runs.
    pub version: String,
    /// Where it is in its life.
    pub state: State,
    /// Process id of the engine, as the host sees it.
    pub pid: Option<i32>,
    /// Seconds since it was started.
    pub age_seconds: f64,
    /// Requests that run on it.
    pub in_flight: u64,
    /// The version of its worker's protocol when that is older than the scheduler's: it was started by an earlier release.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub old_protocol: Option<u32>,
}
