//! `/v1/models`: the models that a client may use.

use super::ApiRequest;
use crate::answer::{AnswerBody, Document};
use hyper::Response;
use omni_config::name::ModelName;
use omni_openai::{Model, model_answer, model_list_answer};
use omni_request_error::Failure;

impl ApiRequest<'_> {
    pub(super) fn models(&self) -> Response<AnswerBody> {
        let models = self.api.node().models();
        let allowed = models.iter().filter(|model| self.may_use(&model.name));
        let list = allowed.map(|model| self.entry(model.name.as_str())).collect();
        Document::json(model_list_answer(list)).response()
    }

    pub(super) fn model(&self, name: &ModelName) -> Result<Response<AnswerBody>, Failure> {
        if !self.may_use(name) {
            return Err(Failure::ModelNotAllowed);
        }
        let found = self.api.node().find(name.as_str()).ok_or(Failure::NoSuchModel)?;
        Ok(Document::json(model_answer(&self.entry(found.name.as_str()))).response())
    }

    fn may_use(&self, name: &ModelName) -> bool {
        self.holder.is_none_or(|holder| holder.may_use(name))
    }

    fn entry(&self, name: &str) -> Model {
        Model::new(name, self.api.since)
    }
}
