//! Repairs and bounds of the engine.

use super::*;
use crate::json;
use proptest::prelude::*;

const BOUNDS: Bounds = Bounds { fuel: 1_000_000, output: 1 << 20 };

fn render(source: &str, variables: &str) -> Result<String, Failure> {
    let compiled = compile(source).map_err(|error| Failure::Panic(error.to_string()))?;
    let variables = json::parse(variables, &mut |text| Value::from(text)).unwrap();
    compiled.render(variables, BOUNDS).map(|output| output.text)
}

#[track_caller]
fn renders(source: &str, variables: &str, expected: &str) {
    match render(source, variables) {
        Ok(text) => assert_eq!(text, expected, "{source}"),
        Err(failure) => panic!("{source}: {failure:?}"),
    }
}

#[test]
fn tojson_writes_as_python_does() {
    let cases = [
        (
            "{{ x|tojson }}",
            r#"{"x": {"b": 1, "a": [1.0, true, null, "é<&'>"]}}"#,
            r#"{"b": 1, "a": [1.0, true, null, "é<&'>"]}"#,
        ),
        ("{{ x|tojson(ensure_ascii=True) }}", r#"{"x": "é😀\u007f"}"#, r#""\u00e9\ud83d\ude00\u007f""#),
        (
            "{{ x|tojson(indent=2) }}",
            r#"{"x": {"a": [1, {}], "b": []}}"#,
            "{\n  \"a\": [\n    1,\n    {}\n  ],\n  \"b\": []\n}",
        ),
        ("{{ x|tojson(indent='-') }}", r#"{"x": [1]}"#, "[\n-1\n]"),
        ("{{ x|tojson(separators=(',', ':')) }}", r#"{"x": {"a": [1, 2]}}"#, r#"{"a":[1,2]}"#),
        ("{{ x|tojson(sort_keys=true) }}", r#"{"x": {"b": 1, "a": 2}}"#, r#"{"a": 2, "b": 1}"#),
        (
            "{{ x|tojson }}",
            r#"{"x": [1e16, 0.00001, -0.0, 12345678901234567890]}"#,
            "[1e+16, 1e-05, -0.0, 12345678901234567890]",
        ),
        ("{{ x|tojson }}", r#"{"x": "\u0001\b\f\n\r\t\"\\"}"#, r#""\u0001\b\f\n\r\t\"\\""#),
        ("{{ {2: 1, none: 3, true: 4}|tojson }}", "{}", r#"{"2": 1, "null": 3, "true": 4}"#),
    ];
    for (source, variables, expected) in cases {
        renders(source, variables, expected);
    }
    assert!(matches!(render("{{ nothing|tojson }}", "{}"), Err(Failure::Error(_))));
}

#[test]
fn values_are_printed_as_python_does() {
    let cases = [
        (
            "{{ x }}",
            r#"{"x": [true, null, 1.0, "it's", "a\"b", "n\n\u007f\u200b"]}"#,
            r#"[True, None, 1.0, "it's", 'a"b', 'n\n\x7f\u200b']"#,
        ),
        ("{{ x }} {{ x ~ '' }} {{ x|string }}", r#"{"x": 1e16}"#, "1e+16 1e+16 1e+16"),
        ("{{ x is number }} {{ x is float }} {{ 1 is float }}", r#"{"x": 1e-7}"#, "True True False"),
        ("{{ (1,) }} {{ (1, 2) }} {{ {} }}", "{}", "(1,) (1, 2) {}"),
        ("{{ nothing }}{{ none }}{{ 1.5 }}", "{}", "None1.5"),
        (
            "{{ [1, 'a']|join('-') }}|{{ '-'.join(['a', 'b']) }}|{{ x|join(', ', attribute='n') }}",
            r#"{"x": [{"n": 1}, {"n": 2}]}"#,
            "1-a|a-b|1, 2",
        ),
    ];
    for (source, variables, expected) in cases {
        renders(source, variables, expected);
    }
}

#[test]
fn whitespace_is_that_of_jinja2() {
    let cases = [
        ("a\n  {% if true %}\nb\n  {% endif %}\nc\n", "a\nb\nc"),
        ("{% generation %}\na{% endgeneration %}\nb", "ab"),
        ("a\r\n{% if true %}\r\nb{% endif %}", "a\nb"),
        ("[{% raw %}\n{{ a }}\n{% endraw %}\n]", "[\n{{ a }}\n]"),
        ("{% macro f(x) -%}\n  {{ x }}{% endmacro %}[{{ f([1]) }}]", "[[1]]"),
        ("{% macro f(x) %}\n\n{{ x }}{% endmacro %}[{{ f(1) }}]", "[\n1]"),
    ];
    for (source, expected) in cases {
        renders(source, "{}", expected);
    }
}

#[test]
fn filters_and_tests_are_those_of_jinja2() {
    let cases = [
        ("{{ 'a\nb\n'|indent(2) }}|", "a\n  b\n|"),
        ("{{ 'a\n\nb'|indent(2, true) }}", "  a\n\n  b"),
        ("{{ 'a\n\nb'|indent('> ', blank=true) }}", "a\n> \n> b"),
        (
            "{{ none is iterable }} {{ [] is iterable }} {{ 'a' is iterable }} {{ 1 is iterable }}",
            "False True True False",
        ),
        ("{% for i in [1, 2, 3] %}{% if i == 2 %}{% continue %}{% endif %}{{ i }}{% endfor %}", "13"),
        ("{% for i in [1, 2] %}{{ loop.previtem }}{{ loop.nextitem }}{% endfor %}", "21"),
        ("{% set ns = namespace(n=0) %}{% for i in [1, 2] %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }}", "3"),
        ("{{ dict.from_keys([('a', 1)]) }} {{ dict(a=1) }}", "{'a': 1} {'a': 1}"),
        (
            "{{ 'a' ~ 1 ~ none ~ nothing ~ [1.0] }} {{ 2 * 3 * 'ab' }} {{ [1] * 2 }} {{ 3 * 1.5 }}",
            "a1None[1.0] abababababab [1, 1] 4.5",
        ),
        (
            "{{ 'aba'|replace('a', 'c') }} {{ 'aba'|replace('a', 'c', 1) }} {{ '<a>'|e }} {{ 'a b'|title }}",
            "cbc cba &lt;a&gt; A B",
        ),
        (
            "{{ ' a '|trim }}{{ 'xax'|trim('x') }} {{ 'aB'|upper }}{{ 'aB'|lower }} {{ '%s-%d'|format('a', 1) }}",
            "aa ABab a-1",
        ),
    ];
    for (source, expected) in cases {
        renders(source, "{}", expected);
    }
}

#[test]
fn methods_are_those_of_python() {
    let cases = [
        ("'a b  c'.rsplit(none, 1)", "['a b', 'c']"),
        ("'a,b,c'.rsplit(',', 1)", "['a,b', 'c']"),
        ("'a,b'.rsplit(',')", "['a', 'b']"),
        ("'a=b=c'.partition('=')", "['a', '=', 'b=c']"),
        ("'a=b=c'.rpartition('=')", "['a=b', '=', 'c']"),
        ("'a'.rpartition('=')", "['', '', 'a']"),
        ("'abc'.removeprefix('a')", "bc"),
        ("'abc'.removesuffix('bc')", "a"),
        ("'éb'.index('b')", "1"),
        ("'-7'.zfill(4)", "-007"),
        ("'a'.ljust(3) ~ '|' ~ 'a'.rjust(3, '.') ~ '|' ~ 'ab'.center(5, '*')", "a  |..a|**ab*"),
        ("{'a': 1}.copy()", "{'a': 1}"),
        ("'{} {}'.format('a', 1)", "a 1"),
        ("{'a': 1}.get('b', 2)", "2"),
        ("'aB'.swapcase()", "Ab"),
    ];
    for (expression, expected) in cases {
        renders(&format!("{{{{ {expression} }}}}"), "{}", expected);
    }
    assert!(matches!(render("{{ 'a'.index('b') }}", "{}"), Err(Failure::Error(_))));
}

#[test]
fn a_raised_exception_is_not_an_error_of_the_template() {
    for source in [
        "{{ raise_exception('no ' ~ 'tools') }}",
        "{% macro f() %}{{ raise_exception('no tools') }}{% endmacro %}{% set x = f() %}",
    ] {
        assert!(matches!(render(source, "{}"), Err(Failure::Raised(text, 1)) if text == "no tools"), "{source}");
    }
    let failure = render("a\n{{ nothing.at_all }}", "{}");
    assert!(matches!(failure, Err(Failure::Error(error)) if error.line() == Some(2)));
}

/// Templates without end, each with its own way around fuel.
const HOSTILE: &[&str] = &[
    "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "{% for i in range(99999) %}{% for j in range(99999) %}x{% endfor %}{% endfor %}",
    "{{ 'x' * 10000000000 }}",
    "{% set x = 'x' * 1000000 %}{{ [x, x, x, x, x, x, x, x, x, x] * 1000000 }}",
    "{% set x = 'x' * 1000000 %}{{ ([x] * 1000000)|join }}",
    "{% set x = 'x' * 1000000 %}{{ ''.join([x] * 1000000) }}",
    "{% set x = 'x' * 1000000 %}{{ ([x] * 1000000)|string }}",
    "{% set x = 'x' * 1000000 %}{{ ([x] * 1000000)|tojson }}",
    "{% set x %}{{ ['x' * 1000000] * 1000000 }}{% endset %}",
    "{% set ns = namespace(x='x') %}{% for i in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
    "{% set ns = namespace(x=[1]) %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}{{ ns.x ~ '' }}",
    "{% set ns = namespace(x=[1]) %}{% for i in range(99) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x == ns.x }}",
    "{% set ns = namespace(x=[]) %}{% for i in range(99999) %}{% set ns.x = [ns.x] %}{% endfor %}",
    "{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}",
    "{% set ns = namespace() %}{% set ns.x = [ns] %}{{ ns ~ '' }}",
    "{% set ns = namespace() %}{% set y = {'a': [ns]} %}{% set ns.x = y %}{{ ns == ns.x }}",
    "{% set ns = namespace(a=1) %}{% for x in [ns] %}{% set ns.x = loop %}{% endfor %}{{ ns.x|string }}",
    "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}",
    "{% macro f(x) %}{{ f([x]) }}{% endmacro %}{{ f(1) }}",
    "{% macro f(x, n) %}{% if n %}{{ f(x + x, n - 1) }}{% else %}{{ x ~ '' }}{% endif %}{% endmacro %}{{ f([1], 60) }}",
    "{% macro f(n) %}{{ g(n) }}{% endmacro %}{% macro g(n) %}{{ f(n) }}{% endmacro %}{{ g(1) }}",
    "{% for x in [[1]] recursive %}{{ loop([[x]]) }}{% endfor %}",
    "{% for x in [1] %}{{ loop.cycle() }}{% endfor %}",
    "{% set x = 'x' * 1000000 %}{{ ([x] * 1000000) ~ '' }}",
    "{% set x = ['x' * 1000000] %}{% for y in x * 1000000 %}{{ y|length }}{% endfor %}",
    "{% set x = ['x' * 1000000] %}{{ ((x + x + x + x + x + x + x + x + x + x) * 1000)|upper }}",
    "{% set x = ['x' * 30000000] %}{{ [x, x, x]|upper }}",
    "{% set x = ['x' * 30000000] %}{{ [x, x, x]|trim }}",
    "{% set x = ['x' * 30000000] %}{{ [x, x, x]|safe }}",
    "{% set x = ['x' * 30000000] %}{{ [x, x, x]|e }}",
    "{% set x = ['x' * 30000000] %}{{ '%s'|format([x, x, x]) }}",
    "{% set x = ['x' * 30000000] %}{{ '{}'.format([x, x, x]) }}",
    "{% set x = ['x' * 30000000] %}{{ raise_exception([x, x, x]) }}",
    "{% set x = ['x' * 30000000] %}{{ ([x, x] + [x, x]) ~ 'a' }}",
    "{{ [1] * 10000000000 == [1] * 10000000000 }}",
    "{{ 'a'|replace('', 'b' * 1000000)|replace('', 'c' * 1000000) }}",
    "{{ 'a'.ljust(10000000000) }}",
    "{{ '{:10000000000}'.format('a') }}",
    "{{ '{:{}}'.format('a', 10000000000) }}",
    "{{ '%10000000000d'|format(1) }}",
    "{{ 'a\nb'|indent(10000000000) }}",
    "{{ 'a'.replace('a', 'b' * 1000000).replace('b', 'c' * 1000000) }}",
    "{{ 2 ** 100000 }}",
    "{% set m = [[{'role': 'user', 'content': 'x'}]] %}{{ (m * 100001) ~ '' }}",
    "{% set x = [1] * 1000000 %}{% for i in range(9999) %}{{ (x ~ '')|length }}{% endfor %}",
    "{% set x = [1] * 1000000 %}{% for i in range(9999) %}{{ x|string|length }}{% endfor %}",
    "{% set x = [1] * 1000000 %}{% for i in range(9999) %}{{ x|tojson|length }}{% endfor %}",
    "{% set x = ['x' * 1000000] %}{% for i in range(9999) %}{{ (x|upper)|length }}{% endfor %}",
    "{% set x = 'x' * 1000000 %}{% for i in range(9999) %}{{ x.replace('x', 'y')|length }}{% endfor %}",
    "{% set x = 'x' * 1000000 %}{% for i in range(9999) %}{{ (x ~ x)|length }}{% endfor %}",
    "{% set x = 'x' * 1000000 %}{% for i in range(9999) %}{{ (x * 2)|length }}{% endfor %}",
    "{% set x = 'x' * 1000000 %}{% for i in range(9999) %}{{ x.strip()|length }}{% endfor %}",
    "{% set x = 'x' * 1000000 %}{% for i in range(9999) %}{{ x.split('y')|length }}{% endfor %}",
    "{% set x = 'x' * 1000000 %}{% for i in range(9999) %}{{ 'y' in x }}{% endfor %}",
    "{% include 'chat_template' %}",
    "{% for i in range(10**12) %}{% endfor %}",
];

#[test]
fn hostile_templates_end() {
    for source in HOSTILE {
        let start = std::time::Instant::now();
        let rendered = render(source, "{}");
        assert!(rendered.is_err(), "{source}: {:?}", rendered.map(|text| text.len()));
        assert!(start.elapsed().as_secs() < 10, "{source}: {:?}", start.elapsed());
    }
}

#[test]
fn sources_that_nest_deeply_are_compiled_or_refused() {
    let cases = [
        format!("{{{{ 1{} }}}}", " + 1".repeat(50_000)),
        format!("{{{{ a{} }}}}", ".b".repeat(50_000)),
        format!("{{{{ a{} }}}}", "|string".repeat(900)),
        format!("{{% if a %}}{}{{% endif %}}", "{% elif a %}".repeat(20_000)),
        format!("{}{}", "{% if a %}".repeat(10_000), "{% endif %}".repeat(10_000)),
        format!("{{{{ {}1{} }}}}", "[".repeat(900), "]".repeat(900)),
        format!("{{{{ {}1 }}}}", "not ".repeat(50_000)),
        format!("{{{{ {}1 }}}}", "- ".repeat(50_000)),
        "{% set x = [x] %}".repeat(20_000),
    ];
    for source in cases {
        let _ = render(&source, "{}");
    }
    assert!(matches!(compile(&" ".repeat(MAX_SOURCE + 1)), Err(LoadError::TooLarge { .. })));
}

#[test]
fn output_is_bounded() {
    let compiled = compile("{% for i in range(100) %}0123456789{% endfor %}").unwrap();
    let bounds = |output| Bounds { fuel: 100_000, output };
    assert!(compiled.render(Value::from(()), bounds(1_000)).is_ok());
    assert!(matches!(compiled.render(Value::from(()), bounds(999)), Err(Failure::TooLong)));
    let starved = compiled.render(Value::from(()), Bounds { fuel: 50, output: 1_000 });
    assert!(matches!(starved, Err(Failure::OutOfFuel)));
}

proptest! {
    #[test]
    fn no_source_panics(source in r#"(\{%-? |-?%\}|\{\{| \}\}|for x in |if |set ns\.x = |endfor|endif|raw|macro f\(x\)|endmacro|ns|x|loop|\[|\]|\(|\)|\||tojson|join|~|\+|==|\*|9|'a'|,|\.items\(\)|\n){0,40}"#) {
        if let Ok(compiled) = compile(&source) {
            let variables = Value::from_pairs([("x", Value::from(vec![1, 2])), ("ns", Value::from(3))]);
            let rendered = compiled.render(variables, Bounds { fuel: 20_000, output: 10_000 });
            prop_assert!(!matches!(rendered, Err(Failure::Panic(_))), "{:?}", rendered);
        }
    }
}
