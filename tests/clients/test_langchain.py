"""The suite `langchain-tests` with `langchain-openai`, unmodified, against a node.

Run by `tests/functional/clients.rs`, which starts the node and its models and says where it listens in OMNI_URL.
"""

import os

from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from langchain_tests.integration_tests import ChatModelIntegrationTests, EmbeddingsIntegrationTests

URL = os.environ["OMNI_URL"]


class TestChat(ChatModelIntegrationTests):
    @property
    def chat_model_class(self):
        return ChatOpenAI

    @property
    def chat_model_params(self):
        return {"model": "chat", "base_url": f"{URL}/v1", "api_key": "token", "max_retries": 0, "stream_usage": True}


class TestEmbeddings(EmbeddingsIntegrationTests):
    @property
    def embeddings_class(self):
        return OpenAIEmbeddings

    @property
    def embedding_model_params(self):
        return {
            "model": "vectors",
            "base_url": f"{URL}/v1",
            "api_key": "token",
            "check_embedding_ctx_length": False,
        }
