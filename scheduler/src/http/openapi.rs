//! The OpenAPI document of the control API, and the test that holds it to the routes and values.

/// The document, as `GET /openapi.json` answers it.
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

    /// The schemas say exactly the fields that the values have.
    #[test]
    fn schemas_have_the_fields_of_the_values() {
        let document: Value = serde_json::from_str(OPENAPI).unwrap();
        let instance = api::Instance {
            id: String::new(),
            version: String::new(),
            state: api::State::Ready,
            pid: Some(1),
            age_seconds: 0.0,
            in_flight: 0,
            old_protocol: Some(1),
        };
        let model = api::Model::unseen(String::new());
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
        let gpu_instance = api::GpuInstance {
            model: String::new(),
            instance: String::new(),
            limit_bytes: 0,
            allocated_bytes: 0,
            resident_bytes: 0,
            residency: api::Residency::Resident,
            idle_seconds: None,
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
        let gpus = api::Gpus { gpus: Vec::new(), host_committed_bytes: 0, host_budget_bytes: 0, message: None };
        let entry = api::LogEntry {
            unix_ms: 0,
            instance: String::new(),
            stream: String::new(),
            request_id: Some(String::new()),
            text: String::new(),
        };
        let problem = api::Problem { kind: String::new(), title: String::new(), status: 0, detail: String::new() };
        for (schema, value) in [
            ("Instance", serde_json::to_value(instance).unwrap()),
            ("Model", serde_json::to_value(model).unwrap()),
            ("Generation", serde_json::to_value(generation).unwrap()),
            ("Directory", serde_json::to_value(api::Directory::default()).unwrap()),
            ("Stop", serde_json::to_value(stop).unwrap()),
            ("History", serde_json::to_value(history).unwrap()),
            ("Version", serde_json::to_value(version).unwrap()),
            ("Explain", serde_json::to_value(explain).unwrap()),
            ("Budgets", serde_json::to_value(api::Budgets::default()).unwrap()),
            ("Budget", serde_json::to_value(api::Budget::default()).unwrap()),
            ("TopRow", serde_json::to_value(row).unwrap()),
            ("Gpus", serde_json::to_value(gpus).unwrap()),
            ("Gpu", serde_json::to_value(gpu).unwrap()),
            ("GpuInstance", serde_json::to_value(gpu_instance).unwrap()),
            ("LogEntry", serde_json::to_value(entry).unwrap()),
            ("Upgrade", serde_json::to_value(api::Upgrade { pid: 0, changes: vec![String::new()] }).unwrap()),
            ("Problem", serde_json::to_value(problem).unwrap()),
        ] {
            let properties = &document["components"]["schemas"][schema]["properties"];
            assert_eq!(keys(properties), keys(&value), "{schema}");
        }
        for (schema, words) in [
            ("State", serde_json::to_value(api::State::ALL).unwrap()),
            ("Role", serde_json::to_value(api::Role::ALL).unwrap()),
            ("Because", serde_json::to_value(api::Because::ALL).unwrap()),
            ("StopReason", serde_json::to_value(api::StopReason::ALL).unwrap()),
            ("Residency", serde_json::to_value(api::Residency::ALL).unwrap()),
        ] {
            assert_eq!(document["components"]["schemas"][schema]["enum"], words, "{schema}");
        }
    }
}
