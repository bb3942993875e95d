//! `/v1/messages/count_tokens`: number of tokens of a prompt, as the model counts them.

use super::text::TextRequest;
use super::{ApiRequest, TextCodec, guarded, json_body, model_name};
use crate::answer::AnswerBody;
use crate::forward::Listener;
use crate::head::timeout;
use crate::outcome::count_failure;
use crate::submission::Caller;
use hyper::Response;
use omni_ingress::body::IncomingBody;
use omni_request_error::Failure;
use omni_supervisor::metrics::Api;

impl ApiRequest<'_> {
    pub(super) async fn count_tokens(&self, incoming: &mut IncomingBody) -> Result<Response<AnswerBody>, Failure> {
        let received = self.receive(incoming).await?;
        let (original, permit) = json_body(received)?;
        let request = omni_anthropic::count_request(&original)?;
        let name = model_name(&request.model)?;
        let guard = self.admit(&name)?;
        let model = self.api.find(name.as_str()).await?;
        let served = async {
            let content = self.api.content(&model).await?;
            let deadline = self.arrived + timeout(&self.parts.headers, &content);
            let caller = Caller { listener: Listener::Data, parts: self.parts, id: self.id, arrived: self.arrived };
            let (api, model, content, codec) = (self.api, &model, &*content, TextCodec::Messages);
            TextRequest { api, caller, model, content, request, codec, original, permit, deadline }.count().await
        };
        let served = served.await.inspect_err(|failure| count_failure(&model, Api::Anthropic, failure, self.id));
        Ok(guarded(served?, guard))
    }
}
