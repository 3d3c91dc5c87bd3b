package computetest

import (
	"fmt"
	"regexp"
	"strings"
)

// filter decides about what a get answers.
type filter func(obj) bool

// filterToken are the parts of a filter expression.
var filterToken = regexp.MustCompile(`\s*("(?:[^"\\]|\\.)*"|'[^']*'|\(|\)|!=|<=|>=|=|:|<|>|[^\s()=!<>:"']+)`)

// legacyFilter is the older kind: one comparison with a regular expression.
var legacyFilter = regexp.MustCompile(`^\s*(\S+)\s+(eq|ne)\s+(.+?)\s*$`)

type filterParser struct {
	tokens []string
	legacy bool
}

// parseFilter understands the two kinds of filters of the discovery document, which cannot be mixed: comparisons with =,
// != and : joined by AND (or nothing), OR, NOT, - and parentheses, and comparisons with eq and ne, each in parentheses.
func parseFilter(expression string) (filter, error) {
	if strings.TrimSpace(expression) == "" {
		return func(obj) bool { return true }, nil
	}
	p := &filterParser{}
	rest := expression
	for strings.TrimSpace(rest) != "" {
		m := filterToken.FindStringSubmatchIndex(rest)
		if m == nil || m[0] != 0 {
			return nil, fmt.Errorf("unexpected %q", rest)
		}
		p.tokens = append(p.tokens, rest[m[2]:m[3]])
		rest = rest[m[1]:]
	}
	for _, t := range p.tokens {
		p.legacy = p.legacy || t == "eq" || t == "ne"
	}
	if p.legacy {
		return parseLegacy(expression)
	}
	f, err := p.or()
	if err == nil && len(p.tokens) > 0 {
		err = fmt.Errorf("unexpected %q", p.tokens[0])
	}
	return f, err
}

func parseLegacy(expression string) (filter, error) {
	parts := []string{expression}
	if inner, ok := strings.CutPrefix(strings.TrimSpace(expression), "("); ok {
		parts = regexp.MustCompile(`\)\s*\(`).Split(strings.TrimSuffix(inner, ")"), -1)
	}
	var all []filter
	for _, part := range parts {
		m := legacyFilter.FindStringSubmatch(part)
		if m == nil {
			return nil, fmt.Errorf("unexpected %q: the two kinds of filters cannot be mixed", part)
		}
		pattern, err := regexp.Compile("^(?:" + strings.Trim(m[3], `"'`) + ")$")
		if err != nil {
			return nil, err
		}
		field, equal := m[1], m[2] == "eq"
		all = append(all, func(o obj) bool {
			value, _ := fieldOf(o, field)
			return pattern.MatchString(value) == equal
		})
	}
	return and(all), nil
}

func and(all []filter) filter {
	return func(o obj) bool {
		for _, f := range all {
			if !f(o) {
				return false
			}
		}
		return true
	}
}

func (p *filterParser) peek() string {
	if len(p.tokens) == 0 {
		return ""
	}
	return p.tokens[0]
}

func (p *filterParser) next() string {
	t := p.peek()
	if t != "" {
		p.tokens = p.tokens[1:]
	}
	return t
}

// or binds more weakly than and.
func (p *filterParser) or() (filter, error) {
	first, err := p.and()
	if err != nil {
		return nil, err
	}
	some := []filter{first}
	for p.peek() == "OR" {
		p.next()
		f, err := p.and()
		if err != nil {
			return nil, err
		}
		some = append(some, f)
	}
	return func(o obj) bool {
		for _, f := range some {
			if f(o) {
				return true
			}
		}
		return false
	}, nil
}

func (p *filterParser) and() (filter, error) {
	var all []filter
	for {
		f, err := p.term()
		if err != nil {
			return nil, err
		}
		all = append(all, f)
		switch p.peek() {
		case "", ")", "OR":
			return and(all), nil
		case "AND":
			p.next()
		}
	}
}

func (p *filterParser) term() (filter, error) {
	switch t := p.next(); {
	case t == "NOT":
		f, err := p.term()
		return func(o obj) bool { return !f(o) }, err
	case t == "(":
		f, err := p.or()
		if err == nil && p.next() != ")" {
			err = fmt.Errorf("a parenthesis is not closed")
		}
		return f, err
	case t == "" || strings.ContainsAny(t, `()=!<>:"'`):
		return nil, fmt.Errorf("want a field, got %q", t)
	default:
		field, negated := strings.CutPrefix(t, "-")
		operator, value := p.next(), p.next()
		if value == "" || value == ")" || operator != "=" && operator != "!=" && operator != ":" {
			return nil, fmt.Errorf("want a comparison of %s with =, != or :, got %q", field, operator+value)
		}
		value = strings.Trim(value, `"'`)
		return func(o obj) bool { return compare(o, field, operator, value) != negated }, nil
	}
}

func compare(o obj, field, operator, value string) bool {
	got, ok := fieldOf(o, field)
	switch {
	case operator == "!=":
		return got != value
	case value == "*":
		return ok
	case operator == ":":
		return ok && strings.Contains(strings.ToLower(got), strings.ToLower(value))
	case strings.HasSuffix(value, "*"):
		return strings.HasPrefix(got, strings.TrimSuffix(value, "*"))
	default:
		return ok && got == value
	}
}

// fieldOf is a field by its path.
func fieldOf(o obj, path string) (string, bool) {
	for {
		name, rest, more := strings.Cut(path, ".")
		if !more {
			switch v := o[name].(type) {
			case nil:
				return "", false
			case string:
				return v, true
			default:
				return fmt.Sprint(v), true
			}
		}
		o, _ = o[name].(obj)
		path = rest
	}
}
