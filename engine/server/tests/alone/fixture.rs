//! A model of nothing behind a real socket: simulated backend, a token for each byte.

use omni_batcher::Limits;
use omni_chat_template::TemplateSource;
use omni_engine::alone::{Service, ServiceFacts, TextModel, listen_until};
use omni_engine::engine::{Engine, Settings};
use omni_kernels::{Backend, BackendError, StepPlan};
use omni_kernels_fake::{Cost, LAYERS, SimulatedBackend, Stepped};
use omni_kv_cache::Root;
use omni_sampler::Vocabulary;
use omni_tokenizer::{Tokenizer, TokenizerConfig};
use serde_json::json;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::oneshot;

/// Number of tokens: 256 bytes, begin, end.
pub(crate) const VOCABULARY: usize = 258;
const BEGIN: &str = "<|begin|>";
const END: &str = "<|end|>";
pub(crate) const END_ID: u32 = 257;
const TEMPLATE: &str = "{% for message in messages %}<|begin|>{{ message.role }}\n{{ message.content }}<|end|>\n{% endfor %}\
                        {% if add_generation_prompt %}<|begin|>assistant\n{% endif %}";

/// Template of a model that calls functions: its calls are JSON.
pub(crate) const TOOLS: &str = "{{ tools | tojson }}{% for message in messages %}{{ message.content }}{% endfor %}";

/// Settings of a server that differ between tests.
#[derive(Clone, Copy)]
pub(crate) struct Given {
    pub(crate) sequences: usize,
    pub(crate) queue: usize,
    pub(crate) context: usize,
    pub(crate) step: Duration,
    pub(crate) good_steps: usize,
    pub(crate) embeds: bool,
    pub(crate) queued_bytes: usize,
    pub(crate) hung: Duration,
    pub(crate) template: Option<&'static str>,
}

impl Default for Given {
    fn default() -> Self {
        Self {
            sequences: 4,
            queue: 8,
            context: 70_000,
            step: Duration::ZERO,
            good_steps: usize::MAX,
            embeds: false,
            queued_bytes: 64 << 20,
            hung: Duration::from_secs(60),
            template: Some(TEMPLATE),
        }
    }
}

/// Server, which ends when it is dropped.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    _stop: oneshot::Sender<()>,
}

impl Server {
    pub(crate) async fn start(given: Given) -> Self {
        let limits = Limits {
            blocks: 8192,
            tokens: 64,
            sequences: given.sequences,
            logits: 64,
            context: given.context,
            queue: given.queue,
            ageing: Duration::from_secs(1),
            layers: LAYERS,
        };
        let vocabulary = Vocabulary::new(VOCABULARY, &[END_ID]).unwrap();
        let inner = SimulatedBackend::new(VOCABULARY, Cost::default());
        let mut steps_left = given.good_steps;
        // Steps take real time, and fail from one on.
        let backend = Stepped::new(inner, move |inner: &mut SimulatedBackend, plan: &StepPlan| {
            std::thread::sleep(given.step);
            steps_left = steps_left.saturating_sub(1);
            if steps_left == 0 {
                return Err(BackendError::Plan("the test has it fail".to_owned()));
            }
            inner.step(plan)
        });
        let settings = Settings {
            embeds: given.embeds,
            queued_bytes: given.queued_bytes,
            hung: given.hung,
            ..Settings::new(limits, vocabulary.clone())
        };
        let engine = Engine::start(backend, settings).unwrap();
        let source = TemplateSource { jinja: given.template, tokenizer_config: None };
        let text = TextModel::new(Arc::new(tokenizer()), vocabulary, &source).unwrap();
        let facts = ServiceFacts {
            name: "bytes".to_owned(),
            longest: given.context,
            embeds: given.embeds.then_some(VOCABULARY),
            root: Root { weights: "none", adapter: None, salt: None, format: "simulated" }.digest(),
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let service = Service::new(engine, facts, text);
        tokio::spawn(async move {
            let stop = async {
                let _ = stopped.await;
            };
            listen_until(listener, service, stop).await.unwrap();
        });
        Self { address, _stop: stop }
    }
}

/// Tokenizer with a token for each byte, numbered as the bytes are.
pub(crate) fn tokenizer() -> Tokenizer {
    // Bytes that are no printable characters are written as those from U+0100 on.
    let printable = |byte: u8| matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    let mut next = 256;
    let mut name = |byte: u8| {
        let code = if printable(byte) { u32::from(byte) } else { next };
        next += u32::from(!printable(byte));
        char::from_u32(code).unwrap().to_string()
    };
    let vocabulary: serde_json::Map<_, _> = (0..=255_u8).map(|byte| (name(byte), byte.into())).collect();
    let added = |id: u32, content: &str| {
        json!({"id": id, "content": content, "special": true, "normalized": false, "single_word": false,
            "lstrip": false, "rstrip": false})
    };
    let file = json!({
        "version": "1.0",
        "added_tokens": [added(256, BEGIN), added(END_ID, END)],
        "normalizer": null,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false},
        "post_processor": null,
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "vocab": vocabulary, "merges": []},
    });
    let config = TokenizerConfig { eos: Some(END.to_owned()), ..TokenizerConfig::default() };
    Tokenizer::from_json(&file.to_string(), &config).unwrap()
}
