//! Models that more than one test asks.

/// Serial; answers with its name, at once or after as many seconds as the body says.
pub const SERIAL: &[(&str, &str)] = &[(
    "model.py",
    "import time\ndef handle_request(request, context):\n    time.sleep(request.body.json or 0)\n    return context.model\n",
)];
