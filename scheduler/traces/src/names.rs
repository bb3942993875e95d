//! Names of attributes, by the semantic conventions of OpenTelemetry, and those of Omni's own.
//!
//! Versions: HTTP and errors of semantic-conventions 1.38 (stable); `gen_ai.*` of semantic-conventions-genai as of
//! 2026-09, all of which is in development, so that a later version may rename it. Values are names and numbers:
//! nothing that a client or a model has written.

/// Method of the HTTP request; [`OTHER_METHOD`] for one that is not well known.
pub const HTTP_REQUEST_METHOD: &str = "http.request.method";
/// Value for a method that is not well known.
pub const OTHER_METHOD: &str = "_OTHER";
/// Path of the request with names of parameters in braces.
pub const HTTP_ROUTE: &str = "http.route";
/// Status of the response.
pub const HTTP_RESPONSE_STATUS_CODE: &str = "http.response.status_code";
/// Class of the error.
pub const ERROR_TYPE: &str = "error.type";

/// Operation of a model.
pub const GEN_AI_OPERATION_NAME: &str = "gen_ai.operation.name";
/// Provider of the model.
pub const GEN_AI_PROVIDER_NAME: &str = "gen_ai.provider.name";
/// Value of [`GEN_AI_PROVIDER_NAME`].
pub const PROVIDER: &str = "omni";
/// Model that was asked for.
pub const GEN_AI_REQUEST_MODEL: &str = "gen_ai.request.model";
/// Why the generation ended, a list.
pub const GEN_AI_RESPONSE_FINISH_REASONS: &str = "gen_ai.response.finish_reasons";
/// Tokens of the prompt.
pub const GEN_AI_USAGE_INPUT_TOKENS: &str = "gen_ai.usage.input_tokens";
/// Tokens of the prompt that came from a cache.
pub const GEN_AI_USAGE_CACHE_READ_INPUT_TOKENS: &str = "gen_ai.usage.cache_read.input_tokens";
/// Tokens of the answer.
pub const GEN_AI_USAGE_OUTPUT_TOKENS: &str = "gen_ai.usage.output_tokens";
/// Tokens of the reasoning.
pub const GEN_AI_USAGE_REASONING_OUTPUT_TOKENS: &str = "gen_ai.usage.reasoning.output_tokens";

/// Operation: a conversation.
pub const CHAT: &str = "chat";
/// Operation: a text is continued.
pub const TEXT_COMPLETION: &str = "text_completion";
/// Operation: vectors.
pub const EMBEDDINGS: &str = "embeddings";
/// Operation outside of the conventions: relevance of documents.
pub const RERANK: &str = "rerank";
/// Operation outside of the conventions: the text of a recording.
pub const SPEECH_TO_TEXT: &str = "speech_to_text";
/// Operation outside of the conventions: a recording of a text.
pub const TEXT_TO_SPEECH: &str = "text_to_speech";
/// Operation outside of the conventions: images.
pub const TEXT_TO_IMAGE: &str = "text_to_image";
/// Operation outside of the conventions: the number of tokens of a prompt.
pub const COUNT_TOKENS: &str = "count_tokens";
/// Operation outside of the conventions: a handler's own.
pub const RUN: &str = "run";

/// API of the request: `run`, `openai` or `anthropic`.
pub const OMNI_API: &str = "omni.api";
/// Id of the instance that got the request.
pub const OMNI_INSTANCE: &str = "omni.instance.id";
/// Version of the model that it runs.
pub const OMNI_MODEL_VERSION: &str = "omni.model.version";
/// Batch that the request is an item of.
pub const OMNI_BATCH: &str = "omni.batch.id";
/// Position in the batch, from 0.
pub const OMNI_BATCH_ITEM: &str = "omni.batch.item";
/// Number of tool calls in an answer.
pub const OMNI_TOOL_CALLS: &str = "omni.tools.calls";
/// Bytes of the answer that the model sent.
pub const OMNI_BYTES_OUT: &str = "omni.bytes_out";

/// Name of the service.
pub const SERVICE_NAME: &str = "service.name";
/// Version of the service.
pub const SERVICE_VERSION: &str = "service.version";
/// Unique id of the process.
pub const SERVICE_INSTANCE_ID: &str = "service.instance.id";
/// Name of the machine.
pub const HOST_NAME: &str = "host.name";

/// Span of a wait in the queue of a model.
pub const QUEUE: &str = "queue";
/// Span of a wait for the environment of a model's version, a part of the wait in the queue.
pub const ENVIRONMENT: &str = "environment";
/// Span of a wait for the start of an instance, a part of the wait in the queue.
pub const START: &str = "start";
/// Span of a wait for GPU memory, a part of the wait in the queue.
pub const SWAP: &str = "swap";
/// Span of a render by the chat template.
pub const TEMPLATE: &str = "template";
/// Span of the parser of tool calls, a part of the model's.
pub const TOOLS: &str = "tools";
