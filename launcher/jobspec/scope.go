package jobspec

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/ext/typeexpr"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/convert"
	"github.com/zclconf/go-cty/cty/function"
)

// scope is what expressions of the file can name.
type scope struct {
	vars      map[string]cty.Value // unknown where a mistake is already reported
	functions map[string]function.Function
}

// value evaluates an expression after looking at the names in it: hcl's own words for a name that is not there do
// not fit a file where only variables have names.
func (s *scope) value(expr hclsyntax.Expression) (cty.Value, hcl.Diagnostics) {
	var diags hcl.Diagnostics
	for _, t := range expr.Variables() {
		diags = append(diags, s.reference(t)...)
	}
	if diags.HasErrors() {
		return cty.DynamicVal, diags
	}
	value, diags := expr.Value(&hcl.EvalContext{
		Variables: map[string]cty.Value{"var": cty.ObjectVal(s.vars)},
		Functions: s.functions,
	})
	for _, d := range diags {
		if d.Subject == nil {
			d.Subject = expr.Range().Ptr()
		}
		extra, ok := hcl.DiagnosticExtra[hclsyntax.FunctionCallDiagExtra](d)
		if !ok {
			continue
		}
		var refused *refusal
		if errors.As(extra.FunctionCallError(), &refused) {
			d.Summary, d.Detail = refused.summary, refused.detail
		}
	}
	return value, diags
}

func (s *scope) reference(t hcl.Traversal) hcl.Diagnostics {
	root := t.RootName()
	if root != "var" {
		detail := fmt.Sprintf("Text needs quotes: \"%s\". The names of a job file are var.NAME.", short(root))
		if _, ok := s.functions[root]; ok {
			detail = fmt.Sprintf("%s is a function: %s(…).", root, root)
		} else if _, ok := s.vars[root]; ok {
			detail = fmt.Sprintf("A variable is read as var.%s.", root)
		}
		return hcl.Diagnostics{complaint(hcl.DiagError, t.SourceRange(), fmt.Sprintf("Unknown name %q", short(root)), detail)}
	}
	if len(t) < 2 {
		return nil
	}
	var name string
	switch step := t[1].(type) {
	case hcl.TraverseAttr:
		name = step.Name
	case hcl.TraverseIndex:
		if step.Key.Type() != cty.String {
			return nil // hcl says what is wrong with it
		}
		name = step.Key.AsString()
	}
	if _, ok := s.vars[name]; ok {
		return nil
	}
	if s.vars == nil {
		return hcl.Diagnostics{complaint(hcl.DiagError, t.SourceRange(), "A default cannot name other variables", "Variables get their values one by one, in no order. Write the value out, or put both together where they are used.")}
	}
	detail := fmt.Sprintf("Declare it beside the job block: variable %q { default = … }.%s", name, didYouMean(name, slices.Sorted(maps.Keys(s.vars))))
	return hcl.Diagnostics{complaint(hcl.DiagError, t.SourceRange(), fmt.Sprintf("Undeclared variable %q", short(name)), detail)}
}

// refusal is an error of env or file with a summary of its own.
type refusal struct{ summary, detail string }

func (r *refusal) Error() string { return r.summary }

// variable is a variable block before its value is known.
type variable struct {
	*block
	declared cty.Type // cty.NilType: none
}

// variables reads the variable blocks and gives each its value, which the rest of the file then sees. Defaults may
// call functions, but not name other variables.
func (d *decoder) variables(blocks []*hclsyntax.Block, set map[string]string) {
	declared := map[string]variable{}
	for _, syntax := range blocks {
		v := variable{block: d.block(d.file.block("variable"), syntax, "")}
		first, again := declared[v.label]
		switch {
		case v.label == "":
			continue // reported
		case !hclsyntax.ValidIdentifier(v.label):
			d.errorf(v.labelAt, fmt.Sprintf("Wrong name of variable %q", short(v.label)), "Letters, digits, _ and -, not a digit first, so that var.NAME can be written.")
			continue
		case again:
			d.errorf(v.header, fmt.Sprintf("Variable %q is declared twice", short(v.label)), "The first one is on line %d.", first.header.Start.Line)
			continue
		}
		if g, ok := v.attrs["type"]; ok {
			t, diags := typeexpr.TypeConstraint(g.expr)
			for _, diag := range diags {
				diag.Summary = fmt.Sprintf("Wrong type of variable %q", short(v.label))
			}
			d.diags = append(d.diags, diags...)
			if !diags.HasErrors() {
				v.declared = t
			}
		}
		declared[v.label] = v
	}
	values := map[string]cty.Value{}
	for name, v := range declared {
		text, ok := set[name]
		values[name] = d.variable(v, text, ok)
	}
	d.scope.vars = values
	for _, name := range slices.Sorted(maps.Keys(set)) {
		if _, ok := declared[name]; ok {
			continue
		}
		known := slices.Sorted(maps.Keys(declared))
		hint := didYouMean(name, known)
		if hint == "" && len(known) > 0 {
			hint = " Declared are " + quoted(known) + "."
		}
		d.errorf(d.anchor, fmt.Sprintf("Undeclared variable %q", short(name)), "--var %s=… sets a variable that this file does not declare.%s", short(name), hint)
	}
}

// variable is the value of one variable: what --var says, or the default.
func (d *decoder) variable(v variable, text string, set bool) cty.Value {
	def, hasDefault := v.attrs["default"]
	value, ok := cty.NilVal, false
	if hasDefault {
		value, ok = def.value.(cty.Value)
	}
	switch {
	case set:
		return d.fromText(v, value, text)
	case !hasDefault:
		d.errorf(v.header, fmt.Sprintf("Variable %q has no value", short(v.label)), "It has no default: say --var %s=….", v.label)
		return cty.DynamicVal
	case !ok:
		return cty.DynamicVal // reported
	case v.declared == cty.NilType:
		return value
	}
	converted, err := convert.Convert(value, v.declared)
	if err != nil {
		d.errorf(def.at, fmt.Sprintf("Wrong default of variable %q", short(v.label)), "Its type is %s: %s.", typeexpr.TypeString(v.declared), err)
		return cty.DynamicVal
	}
	return converted
}

// fromText reads the text of --var as the declared type, or the default's type; text for a string is taken as it
// is, everything else is read as an expression without names.
func (d *decoder) fromText(v variable, def cty.Value, text string) cty.Value {
	want := v.declared
	if want == cty.NilType {
		want = cty.String
		if def != cty.NilVal && def.IsWhollyKnown() && !def.IsNull() {
			want = def.Type()
		}
	}
	value := cty.StringVal(text)
	if !want.IsPrimitiveType() {
		expr, diags := hclsyntax.ParseExpression([]byte(text), "--var "+v.label, hcl.InitialPos)
		parsed, more := cty.DynamicVal, hcl.Diagnostics(nil)
		if !diags.HasErrors() {
			parsed, more = expr.Value(nil)
		}
		if diags.HasErrors() || more.HasErrors() {
			d.errorf(v.header, fmt.Sprintf("Wrong value of variable %q", short(v.label)), "--var %s=… must be %s, and %q is not. Quote it for the shell: --var '%s=[\"a\", \"b\"]'.",
				v.label, friendly(want), short(text), v.label)
			return cty.DynamicVal
		}
		value = parsed
		if v.declared == cty.NilType {
			return value // the default is an example of the shape, its tuple length binds nobody
		}
	}
	converted, err := convert.Convert(value, want)
	if err != nil {
		d.errorf(v.header, fmt.Sprintf("Wrong value of variable %q", short(v.label)), "--var %s=… must be %s, not %q: %s.", v.label, friendly(want), short(text), err)
		return cty.DynamicVal
	}
	return converted
}
