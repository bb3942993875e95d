"""schemathesis over the node's OpenAPI document: no failure of the server, no answer of another form than documented.

Run by `tests/functional/clients.rs`, which starts the node and its models and says where it listens in OMNI_URL and
OMNI_ADMIN_URL.
"""

import os

import requests
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.specs.openapi.checks import positive_data_acceptance

URL = os.environ["OMNI_URL"]
ADMIN_URL = os.environ["OMNI_ADMIN_URL"]
APIS = ["OpenAI API", "Anthropic API", "Workers AI API", "Admin listener", "OpenAPI"]
# Models of the test by path; `chat` for the others.
MODELS = {"/embeddings": ["vectors"], "/run/{model}": ["chat", "vectors"]}
# Requests to an operation, besides those that schemathesis makes for every bound of a schema.
EXAMPLES = 10


def document():
    """The node's document, with its addresses, and with names of models that there are."""
    document = requests.get(f"{ADMIN_URL}/openapi.json", timeout=10).json()
    schemas = document["components"]["schemas"]
    for path, methods in document["paths"].items():
        methods.setdefault("servers", document["servers"])
        models = {"type": "string", "enum": MODELS.get(path, ["chat"])}
        for parameter in methods.get("parameters", []):
            parameter["schema"] = models
        for body in methods.get("post", {}).get("requestBody", {}).get("content", {}).values():
            name_models(body["schema"], schemas, models)
    return document


def name_models(schema, schemas, models):
    if not isinstance(schema, dict):
        return
    if "$ref" in schema:
        name_models(schemas[schema["$ref"].rpartition("/")[2]], schemas, models)
    for part in schema.get("allOf", []):
        name_models(part, schemas, models)
    if "model" in schema.get("properties", {}):
        schema["properties"]["model"] = models


schema = schemathesis.openapi.from_dict(document())
schema.config.servers.variables = {"node": URL, "admin": ADMIN_URL}
schema.config.seed = 1


@schema.include(tag=APIS).parametrize()
@settings(
    max_examples=EXAMPLES, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
def test_answers_have_the_form_of_the_document(case):
    # A schema cannot say all that a request needs: numbers such as 1.0 are no integers here, a parameter may need
    # another one, and models differ in what they honour.
    case.call_and_validate(excluded_checks=[positive_data_acceptance])
