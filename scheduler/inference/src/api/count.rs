//! `/v1/messages/count_tokens`: number of tokens of a prompt, as the model counts them.

use super::text::TextRequest;
use super::{ApiRequest, Target, TextCodec};
use crate::answer::AnswerBody;
use hyper::Response;
use omni_ingress::body::IncomingBody;
use omni_request_error::Failure;
use omni_supervisor::metrics::Api;
use std::sync::Arc;

impl ApiRequest<'_> {
    pub(super) async fn count_tokens(&self, incoming: &mut IncomingBody) -> Result<Response<AnswerBody>, Failure> {
        let (original, permit) = self.receive_json(incoming).await?;
        let request = omni_anthropic::count_request(&original)?;
        let (name, length) = (request.model.clone(), original.len());
        let count = async |target: Target<'_>| {
            let Target { model, content, deadline } = target;
            let content = Arc::clone(content);
            let (api, caller, codec) = (self.api, self.caller(), TextCodec::Messages);
            TextRequest { api, caller, model, content, request, codec, original, permit, deadline }.count().await
        };
        self.with_model(&name, Api::Anthropic, length, count).await
    }
}
