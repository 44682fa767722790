"""Chat templates: what they may do, and that each one ends, in a text or in an error that names its file and line."""

import time

import pytest

from darner import FormatError
from darner.text import Tokenizer
from darner.text.chat import MOST_TEMPLATE, ChatTemplateError, render

MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": " Hi\nthere "},
    {"role": "assistant", "content": "Hello", "tool_calls": [{"name": "f", "arguments": {"x": 1}}]},
]
GIVEN = {"messages": MESSAGES, "tools": None, "add_generation_prompt": True, "bos_token": "<s>"}
DOUBLING = "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}"
TUPLES = DOUBLING.replace("[ns.x, ns.x]", "(ns.x, ns.x)")
FLAT = "{% set ns = namespace(x=[1]) %}{% for i in range(40) %}{% set ns.x = [ns.x, ns.x, ns.x][:2] %}{% endfor %}"
LONG = "{% set ns = namespace(x='ab') %}{% for i in range(60) %}"

ENDLESS = {
    "nested loops": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "a loop with a condition": "{% for i in range(99999) %}{% for j in range(99999) if false %}{% endfor %}{% endfor %}",
    "a loop with much in it": "{% for i in range(99999) %}" + "{% if 1 < 2 %}x{% endif %}" * 500 + "{% endfor %}",
    "a loop with long text": "{% for i in range(99999) %}" + "y" * 10_000 + "{% endfor %}",
    "a loop over a loop's own": "{% for i in [1] recursive %}{{ loop([1, 1]) }}{% endfor %}",
    "a text times a number": '{{ "x" * 10**10 }}',
    "a number times a text": "{{ 10000000000 * 'x' }}",
    "a list times a number": "{{ [1] * 10**9 }}",
    "a power": "{{ 9**9999999 }}",
    "powers in turn": "{% set ns = namespace(x=3) %}{% for i in range(90) %}{% set ns.x = ns.x * ns.x %}{% endfor %}",
    "a wide format": '{{ "%1000000000d"|format(1) }}',
    "a wide operator": '{{ "%1000000000d" % 1 }}',
    "a width that is a value": '{{ "%*d" % (1000000000, 1) }}',
    "a precise operator": '{{ "%.999999999f" % 1.5 }}',
    "a wide method": "{{ '{:1000000000}'.format(1) }}",
    "a width within a format": "{{ '{:{w}}'.format(1, w=1000000000) }}",
    "a long format": "{{ ('%s' * 100000) % ((messages,) * 100000) }}",
    "format_map": "{{ '{x:1000000000}'.format_map({'x': 1}) }}",
    "a macro of itself": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "a macro of itself twice": "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
    "a macro that doubles": "{% macro m(x) %}{{ x }}{{ x }}{% endmacro %}" + "{{ " + "m(" * 60 + "'ab'" + ")" * 60 + " }}",
    "a block of itself": "{% block a %}{{ self.a() }}{{ self.a() }}{% endblock %}",
    "a caller": "{% macro m() %}{{ caller() }}{{ caller() }}{% endmacro %}{% call m() %}{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}{% endcall %}",
    "ljust": "{{ 'x'.ljust(10**10) }}",
    "rjust": "{{ 'x'.rjust(10**10) }}",
    "center": "{{ 'x'.center(10**10) }}",
    "zfill": "{{ 'x'.zfill(10**10) }}",
    "expandtabs": "{{ '\t'.expandtabs(10**9) }}",
    "translate": "{{ ('a' * 100000).translate({97: 'b' * 100000}) }}",
    "to_bytes": "{{ (1).to_bytes(10**10, 'big') }}",
    "replace": LONG + "{% set ns.x = ns.x.replace('a', ns.x) %}{% endfor %}",
    "the filter replace": LONG + "{% set ns.x = ns.x|replace('', ns.x) %}{% endfor %}",
    "join": LONG + "{% set ns.x = ns.x.join([ns.x, ns.x, ns.x]) %}{% endfor %}",
    "the filter join": LONG + "{% set ns.x = [ns.x, ns.x]|join(ns.x) %}{% endfor %}",
    "joining a generator": LONG + "{% set ns.x = [ns.x, ns.x]|map('upper')|join %}{% endfor %}",
    "texts added": LONG + "{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "texts side by side": LONG + "{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
    "a block that is set": LONG + "{% set y %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = y %}{% endfor %}",
    "lists added": LONG.replace("'ab'", "[1]") + "{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "indent": "{{ ('a\n' * 10000)|indent(10**6) }}",
    "the filter center": "{{ 'a'|center(10**10) }}",
    "batch": "{{ [1]|batch(10**10, 'x')|list }}",
    "slice": "{{ [1]|slice(10**10)|list }}",
    "round": "{{ 1|round(10**9, 'ceil') }}",
    "sums of lists": "{{ (range(99999)|map('string')|map('list')|list)|sum(start=[])|length }}",
    "lists of lists as text": DOUBLING + "{{ ns.x }}",
    "lists of lists as JSON": DOUBLING + "{{ ns.x|tojson }}",
    "lists of lists compared": DOUBLING + DOUBLING.replace("ns", "other") + "{{ ns.x == other.x }}",
    "lists of lists sought": DOUBLING + DOUBLING.replace("ns", "other") + "{{ ns.x in [other.x] }}",
    "lists of lists tested": DOUBLING + DOUBLING.replace("ns", "other") + "{{ ns.x is eq(other.x) }}",
    "lists of lists counted": DOUBLING + DOUBLING.replace("ns", "other") + "{{ [other.x].index(ns.x) }}",
    "lists of lists joined": DOUBLING + "{{ [ns.x]|join }}",
    "lists of lists formatted": DOUBLING + "{{ '%s' % [ns.x] }}",
    "lists of lists sorted": DOUBLING + DOUBLING.replace("ns", "other") + "{{ [ns.x, other.x]|sort }}",
    "a table as text": DOUBLING + "{{ ns }}",
    "keys of keys": TUPLES + "{{ {ns.x: 1} }}",
    "an element by keys": TUPLES + "{{ {}[ns.x] }}",
    "unique keys": TUPLES.replace("[1]", "(1,)") + "{{ [ns.x, ns.x]|unique|list }}",
    "lists with a wide indent": "{{ [[[[1]]]]|tojson(indent=10**9) }}",
    "slices of a long text": "{% set x = 'x' * 1000000 %}{% for i in range(99999) %}{% set y = x[1:] %}{% endfor %}",
    "a long text in upper case": "{% set x = 'x' * 1000000 %}{% for i in range(99999) %}{% set y = x|upper %}{% endfor %}",
    "a long text in titles": "{% set x = 'x y ' * 250000 %}{% for i in range(99999) %}{% set y = x|title %}{% endfor %}",
    "a long text split": "{% set x = 'x y ' * 250000 %}{% for i in range(99999) %}{% set y = x.split() %}{% endfor %}",
    "a long text compared": "{% set x = 'x' * 1000000 %}{% set z = 'x' * 1000000 %}{% for i in range(99999) %}{% set y = x == z %}{% endfor %}",
    "filters upon filters": "{% for i in range(99999) %}{{ range(99999)" + "|map('string')|map('upper')" * 50 + "|list|length }}{% endfor %}",
    "attributes upon attributes": "{% for i in range(99999) %}{{ range(99999)" + "|map(attribute='real')" * 50 + "|list|length }}{% endfor %}",
    "much text": "{% for i in range(99999) %}{{ 'x' * 1000 }}{% endfor %}",
    "a wide date": "{{ strftime_now('%1000000000d') }}",
    "a long date": "{{ strftime_now('%c' * 1000000) }}",
    "a long message": "{{ raise_exception('x' * 100000) }}",
    "a long range": "{{ range(10**9) }}",
    "lorem ipsum": "{{ lipsum(n=10**9) }}",
    "calls": "{% for i in range(99999) %}{% for j in range(9999) %}{{ 'x'.upper() }}{% endfor %}{% endfor %}",
    "many arguments": "{% for i in range(99999) %}{{ dict([(1, 2)] * 100000) }}{% endfor %}",
    "parentheses": "{{ " + "(" * 20_000 + "1" + ")" * 20_000 + " }}",
    "signs": "{{ " + "-" * 20_000 + "1 }}",
    "negations": "{{ " + "not " * 9_000 + "1 }}",
    "sums": "{{ 1" + " + 1" * 20_000 + " }}",
    "attributes": "{{ a" + ".b" * 20_000 + " }}",
    "lists in lists": "{{ " + "[" * 20_000 + "]" * 20_000 + " }}",
    "conditions": "{% if 1 %}" * 2_000 + "{% endif %}" * 2_000,
    "loops in loops": "{% for i in [1] %}" * 500 + "{% endfor %}" * 500,
    "many nodes": "{{a}}" * 19_000,
    "many calls": "{% call m() %}{% endcall %}" * 3_700,
    "too long": "x" * (MOST_TEMPLATE + 1),
}  # fmt: skip


@pytest.mark.parametrize("name", ENDLESS)
def test_a_template_that_does_not_end_is_an_error(name):
    begun = time.process_time()
    with pytest.raises(ChatTemplateError) as caught:
        render(ENDLESS[name], GIVEN, "folder/chat_template.jinja")
    assert time.process_time() - begun < 3  # less than one, on a machine that does nothing else
    message = str(caught.value)
    assert message.startswith("'folder/chat_template.jinja'")
    assert "\n" not in message
    assert len(message) < 1000
    assert isinstance(caught.value, FormatError)


FAULTS = {
    "1: syntax": ("{% if %}", r"line 1: Expected an expression"),
    "a tag": ("\n\n{% nothing %}", r"line 3: Encountered unknown tag 'nothing'"),
    "an end": ("a\n{% for i in [1] %}", r"line 2: Unexpected end of template"),
    "a filter": ("\n{{ 1|nothing }}", r"line 2: No filter named 'nothing'"),
    "division": ("a\nb\n{{ 1 / 0 }}", r"line 3: division by zero"),
    "types": ("\n{{ 'a' + 1 }}", r"line 2: can only concatenate str"),
    "undefined": ("{{ a.b.c }}", r"line 1: 'a' is undefined"),
    "a call of nothing": ("\n\n{{ nothing() }}", r"line 3: 'nothing' is undefined"),
    "no JSON": ("{{ nothing|tojson }}", r"line 1: Object of type Undefined is not JSON"),
    "refused": ("\n{{ raise_exception('roles must\n alternate') }}", r"line 2: roles must alternate$"),
    "in a macro": ("{% macro m() %}\n{{ 1 // 0 }}{% endmacro %}\n\n{{ m() }}", r"line 2: integer"),
    "include": ("{% include 'x' %}", r"line 1: no loader"),
    "import": ("\n{% import '/etc/passwd' as x %}", r"line 2: no loader"),
    "extends": ("{% extends 'x' %}", r"line 1: no loader"),
    "the machine": ("{{ ''.__class__.__mro__ }}", r"line 1: .*unsafe"),
    "globals": ("{{ raise_exception.__globals__['os'] }}", r"line 1: .*unsafe"),
    "changes": ("{{ messages.append(1) }}", r"line 1: .*unsafe"),
    "a surrogate": ("{{ '\\ud800' }}", None),
    "range": ("{{ range() }}", r"line 1: "),
    "a NUL": ("\0{{ 1 }}", None),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_what_goes_wrong_in_a_template_is_ours_and_has_its_line(name):
    template, message = FAULTS[name]
    if message is None:
        assert render(template, GIVEN)
        return
    with pytest.raises(
        ChatTemplateError, match=rf"^'f/tokenizer_config.json', {message}"
    ) as caught:
        render(template, GIVEN, "f/tokenizer_config.json")
    assert caught.value.line is not None
    assert "\n" not in str(caught.value)


FINE = {
    "": "",
    "{% for m in messages %}[{{ m['role'] }}]{{ m.content | trim }}{% if not loop.last %}, {% endif %}{% endfor %}":
        "[system]Be brief., [user]Hi\nthere, [assistant]Hello",
    "{% for m in messages if m.role != 'system' %}{{ loop.index }}{{ m.role }}{% endfor %}": "1user2assistant",
    "{% for m in messages %}{% if loop.index0 == 1 %}{% continue %}{% endif %}{{ m.role }}{% if m.role == 'x' %}{% break %}{% endif %}{% endfor %}":
        "systemassistant",
    "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + m.content|length %}{% endfor %}{{ ns.n }}": "24",
    "{% generation %}{{ bos_token }}{% endgeneration %}": "<s>",
    "{% for m in messages %}{% generation %}{{ m.role[0] }}{% endgeneration %}{% endfor %}": "sua",
    "{{ messages[2].tool_calls | tojson }}": '[{"name": "f", "arguments": {"x": 1}}]',
    "{{ {'é': 1} | tojson(indent=2) }}": '{\n  "é": 1\n}',
    "{{ {'é': '<'} | tojson(ensure_ascii=True) }}": '{"\\u00e9": "<"}',
    "{{ messages | map(attribute='role') | join('-') }}": "system-user-assistant",
    "{{ messages | selectattr('role', 'equalto', 'user') | list | length }}": "1",
    "{{ messages | rejectattr('role', 'in', ['user']) | map(attribute='role') | list }}": "['system', 'assistant']",
    "{{ messages[1:] | length }}{{ messages[::-1][0].role }}{{ messages[-1]['content'] }}": "2assistantHello",
    "{{ 'a</think>b'.split('</think>')[-1].lstrip('\\n') }}": "b",
    "{{ 'a' ~ 1 ~ none ~ true }}": "a1NoneTrue",
    "{{ '%s is %d' % ('a', 1700000000) }}{{ '%s'|format('b') }}{{ '{}-{x:>3}'.format(1, x=2) }}": "a is 1700000000b1-  2",
    "{{ 'a-b'.replace('-', '+') }}{{ 'a b'|replace(' ', '_') }}{{ ','.join(['x', 'y']) }}": "a+ba_bx,y",
    "{% macro m(x, y=2) %}<{{ x }}{{ y }}>{% endmacro %}{{ m(1) }}{{ m(1, y=3) }}": "<12><13>",
    "{% macro m() %}({{ caller() }}){% endmacro %}{% call m() %}x{% endcall %}": "(x)",
    "{% for k, v in messages[2].items() %}{{ k }} {% endfor %}": "role content tool_calls ",
    "{% if tools is none and messages is iterable and messages[0] is mapping and x is not defined %}y{% endif %}": "y",
    "{{ messages|first|tojson }}": '{"role": "system", "content": "Be brief."}',
    "{{ (messages|last).content|upper|indent(2, first=true) }}": "  HELLO",
    "{{ [3, 1, 2]|sort|join }}{{ [1, 2]|sum }}{{ [1, 2]|max }}{{ 2.5|round|int }}{{ 7 // 2 }}{{ 2 ** 10 }}{{ -3 + 1 }}": "12332231024-2",
    "{% for i in [1, [2, [3]]] recursive %}{{ loop(i) if i is iterable else i }}{% endfor %}": "123",
    "{% set x %}a{{ 1 }}{% endset %}{{ x }}{% filter upper %}b{% endfilter %}": "a1B",
    "{{ strftime_now('%Y')|length }}{{ dict(a=1).a }}{{ range(3)|list }}{{ 'x' if false }}{{ undefined_thing }}": "41[0, 1, 2]",
    "{%- for m in messages -%}\n  {{- m.role -}}\n{%- endfor -%}": "systemuserassistant",
    "{% set a, b = 'x', 'y' %}{{ b }}{{ {'k': a}['k'] }}{{ 1 in [1, 2] }}{{ 1 < 2 < 3 }}": "yxTrueTrue",
}  # fmt: skip


@pytest.mark.parametrize("template", FINE)
def test_a_template_writes_what_it_should(template):
    assert render(template, GIVEN) == FINE[template]


def test_long_chats_have_steps_enough():
    """What is allowed grows with what is given."""
    template = (
        "{% for m in messages %}{% set text = m.content.split('</think>')[-1].strip() | replace('a', 'b') %}"
        "{% for n in messages[-3:] %}{{ n.role }}{% endfor %}{% if loop.index0 == messages|length - 1 %}!{% endif %}"
        "<|{{ m['role'] }}|>{{ text | trim }}{% endfor %}"
    )
    many = [{"role": "user", "content": f"message {i} " * 20} for i in range(3000)]
    assert render(template, {"messages": many}).count("<|user|>") == 3000
    long = [{"role": "user", "content": "xy" * 2_000_000}]
    assert len(render(template, {"messages": long})) > 4_000_000


def test_a_tokenizer_names_the_file_of_its_template(tmp_path):
    made = Tokenizer(
        None, {"bos_token": "<s>"}, "\n{{ 1 / 0 }}", template_file="m/chat_template.jinja"
    )
    with pytest.raises(
        ChatTemplateError, match=r"^'m/chat_template.jinja', line 2: division by zero"
    ):
        made.chat(MESSAGES)
