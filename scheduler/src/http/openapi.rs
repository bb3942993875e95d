//! The OpenAPI document of the control API, and the test that holds it to the routes and values.

/// The document, as `GET /openapi.json` answers it.
pub const OPENAPI: &str = include_str!("openapi.json");

#[cfg(test)]
mod tests {
    use super::*;
    use omni_api as api;
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
        let instance = api::Instance { id: String::new(), pid: Some(1), age_seconds: 0.0 };
        let name = omni_config::name::ModelName::try_from("x".to_owned()).unwrap();
        let model = api::Model { instance: Some(instance.clone()), ..crate::model::task::empty_view(&name) };
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
        let entry = api::LogEntry { unix_ms: 0, instance: String::new(), stream: String::new(), text: String::new() };
        let problem = api::Problem { kind: String::new(), title: String::new(), status: 0, detail: String::new() };
        for (schema, value) in [
            ("Instance", serde_json::to_value(instance).unwrap()),
            ("Model", serde_json::to_value(model).unwrap()),
            ("TopRow", serde_json::to_value(row).unwrap()),
            ("Gpus", serde_json::to_value(gpus).unwrap()),
            ("Gpu", serde_json::to_value(gpu).unwrap()),
            ("GpuInstance", serde_json::to_value(gpu_instance).unwrap()),
            ("LogEntry", serde_json::to_value(entry).unwrap()),
            ("Problem", serde_json::to_value(problem).unwrap()),
        ] {
            let properties = &document["components"]["schemas"][schema]["properties"];
            assert_eq!(keys(properties), keys(&value), "{schema}");
        }
        let states: Vec<_> = api::State::ALL.iter().map(|state| state.as_str()).collect();
        assert_eq!(document["components"]["schemas"]["State"]["enum"], serde_json::to_value(states).unwrap());
        let residencies: Vec<_> = api::Residency::ALL.iter().map(|residency| residency.as_str()).collect();
        assert_eq!(document["components"]["schemas"]["Residency"]["enum"], serde_json::to_value(residencies).unwrap());
    }
}
