//! OpenAPI document of the control API, and the tests that compare it with the values.

/// The document, as in the response to `GET /openapi.json`.
pub(crate) const OPENAPI: &str = include_str!("openapi.json");

#[cfg(test)]
mod tests {
    use super::*;
    use omni_control_api as api;
    use serde_json::Value;

    fn keys(value: &Value) -> Vec<String> {
        let mut keys: Vec<String> = value.as_object().unwrap().keys().cloned().collect();
        keys.sort();
        keys
    }

    fn value(value: impl serde::Serialize) -> Value {
        serde_json::to_value(value).unwrap()
    }

    /// Schemas of models, each with a value.
    fn models() -> [(&'static str, Value); 7] {
        let instance = api::Instance {
            id: String::new(),
            version: String::new(),
            state: api::State::Ready,
            pid: Some(1),
            age_seconds: 0.0,
            in_flight: 0,
            old_protocol: Some(1),
        };
        let generation = api::Generation {
            version: String::new(),
            role: api::Role::Serving,
            state: api::State::Ready,
            message: None,
            retry_in_seconds: None,
        };
        let stop = api::Stop { reason: api::StopReason::Idle, message: String::new(), unix_ms: 0 };
        let version = api::Version { version: String::new(), first_ready_unix_ms: 0, role: None };
        let history = api::History { name: String::new(), versions: Vec::new() };
        [
            ("Instance", value(instance)),
            ("Model", value(api::Model::unseen(String::new()))),
            ("Generation", value(generation)),
            ("Directory", value(api::Directory::default())),
            ("Stop", value(stop)),
            ("History", value(history)),
            ("Version", value(version)),
        ]
    }

    /// Schemas of what models need and use, each with a value.
    fn resources() -> [(&'static str, Value); 7] {
        let explain = api::Explain {
            name: String::new(),
            state: api::State::Ready,
            ready: 0,
            instances: 0,
            wanted: 0,
            because: api::Because::Min,
            min: 0,
            max: 1,
            concurrency: 1,
            load: 0,
            average: 0.0,
            average_seconds: 0.0,
            greatest: 0.0,
            greatest_seconds: 0.0,
            message: None,
            last_stop: None,
            budgets: api::Budgets::default(),
        };
        let row = api::TopRow {
            name: String::new(),
            state: api::State::Ready,
            memory_bytes: 0,
            memory_limit_bytes: 0,
            gpu_bytes: None,
            cpu_usec: 0,
            pids: 0,
            in_flight: 0,
            requests: 0,
        };
        let gpu = api::Gpu {
            index: 0,
            uuid: String::new(),
            name: String::new(),
            total_bytes: 0,
            used_bytes: 0,
            budget_bytes: 0,
            resident_bytes: 0,
            committed_bytes: 0,
            commit_limit_bytes: 0,
            instances: Vec::new(),
        };
        let gpu_instance = api::GpuInstance {
            model: String::new(),
            instance: String::new(),
            limit_bytes: 0,
            allocated_bytes: 0,
            resident_bytes: 0,
            residency: api::Residency::Resident,
            idle_seconds: None,
        };
        let gpus = api::Gpus { gpus: Vec::new(), host_committed_bytes: 0, host_budget_bytes: 0, message: None };
        [
            ("Explain", value(explain)),
            ("Budgets", value(api::Budgets::default())),
            ("Budget", value(api::Budget::default())),
            ("TopRow", value(row)),
            ("Gpus", value(gpus)),
            ("Gpu", value(gpu)),
            ("GpuInstance", value(gpu_instance)),
        ]
    }

    /// The other schemas with fields, each with a value.
    fn others() -> [(&'static str, Value); 3] {
        let entry = api::LogEntry {
            unix_ms: 0,
            instance: String::new(),
            stream: String::new(),
            request_id: Some(String::new()),
            text: String::new(),
        };
        let problem = api::Problem { kind: String::new(), title: String::new(), status: 0, detail: String::new() };
        [
            ("LogEntry", value(entry)),
            ("Upgrade", value(api::Upgrade { pid: 0, changes: vec![String::new()] })),
            ("Problem", value(problem)),
        ]
    }

    /// Each schema has exactly the fields of its value.
    #[test]
    fn schemas_have_the_fields_of_the_values() {
        let document: Value = serde_json::from_str(OPENAPI).unwrap();
        for (schema, value) in models().into_iter().chain(resources()).chain(others()) {
            let properties = &document["components"]["schemas"][schema]["properties"];
            assert_eq!(keys(properties), keys(&value), "{schema}");
        }
        for (schema, words) in [
            ("State", value(api::State::ALL)),
            ("Role", value(api::Role::ALL)),
            ("Because", value(api::Because::ALL)),
            ("StopReason", value(api::StopReason::ALL)),
            ("Residency", value(api::Residency::ALL)),
        ] {
            assert_eq!(document["components"]["schemas"][schema]["enum"], words, "{schema}");
        }
    }
}
