package jobspec

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"
)

// block is a block of the file read against its spec. One that the file leaves out is there too, not written,
// so that defaults are asked for in one way.
type block struct {
	spec    *blockSpec
	written bool
	label   string
	labelAt hcl.Range
	header  hcl.Range // keyword and labels
	path    string    // key in Ranges
	attrs   map[string]*given
	blocks  map[string][]*block
	rest    []*hclsyntax.Attribute // of a provider: names the table does not have
}

// given is an attribute of the file.
type given struct {
	value any // by kind; nil after a mistake
	raw   cty.Value
	expr  hclsyntax.Expression
	at    hcl.Range // of the expression
	name  hcl.Range
}

// decoder walks a body and its spec side by side, and goes on after a mistake.
type decoder struct {
	file   blockSpec
	scope  *scope
	ranges Ranges
	diags  hcl.Diagnostics
	files  map[string]string // what CheckFiles shall find
	anchor hcl.Range         // for what has no place of its own in the file
}

func (d *decoder) errorf(at hcl.Range, summary, detail string, args ...any) {
	d.diags = d.diags.Append(complaint(hcl.DiagError, at, summary, fmt.Sprintf(detail, args...)))
}

func (d *decoder) warnf(at hcl.Range, summary, detail string, args ...any) {
	d.diags = d.diags.Append(complaint(hcl.DiagWarning, at, summary, fmt.Sprintf(detail, args...)))
}

func complaint(severity hcl.DiagnosticSeverity, at hcl.Range, summary, detail string) *hcl.Diagnostic {
	return &hcl.Diagnostic{Severity: severity, Summary: summary, Detail: detail, Subject: at.Ptr()}
}

// body reads everything in body by spec into a block.
func (d *decoder) body(spec *blockSpec, body *hclsyntax.Body, path string) *block {
	b := &block{spec: spec, written: true, path: path, attrs: map[string]*given{}, blocks: map[string][]*block{}}
	for _, a := range inOrder(body.Attributes) {
		row := spec.attribute(a.Name)
		if row == nil {
			if spec.name == "provider" && spec.block(a.Name) == nil {
				b.rest = append(b.rest, a)
				continue
			}
			d.unknownName(spec, path, a)
			continue
		}
		g := &given{expr: a.Expr, at: a.Expr.Range(), name: a.NameRange}
		d.ranges[join(path, a.Name)] = g.at
		switch raw, ok := d.evaluate(row, a.Expr); {
		case !ok:
			b.attrs[a.Name] = g
		case raw.IsNull() && row.kind != kindAny:
			// Left out, as with a variable whose default is null.
		default:
			g.raw = raw
			g.value = d.convert(row, g)
			b.attrs[a.Name] = g
		}
	}
	for _, inner := range body.Blocks {
		s := spec.block(inner.Type)
		if s == nil {
			d.unknownName(spec, path, inner)
			continue
		}
		child := d.block(s, inner, path)
		if before := b.blocks[s.name]; len(before) > 0 && !s.many {
			d.errorf(child.header, fmt.Sprintf("Only one %q block is allowed", s.name),
				"The first one is on line %d. Merge the two, or keep one.", before[0].header.Start.Line)
			continue
		}
		b.blocks[s.name] = append(b.blocks[s.name], child)
	}
	return b
}

func (d *decoder) block(spec *blockSpec, syntax *hclsyntax.Block, outer string) *block {
	header := syntax.DefRange()
	label, labelAt := "", header
	switch {
	case spec.label == "" && len(syntax.Labels) > 0:
		d.errorf(syntax.LabelRanges[0], fmt.Sprintf("%q takes no label", spec.name), "Write %s { … }.", spec.name)
	case spec.label != "" && len(syntax.Labels) == 0:
		d.errorf(header, fmt.Sprintf("Missing label of %q", spec.name), "The label is %s: %s \"…\" { … }.", spec.label, spec.name)
	case spec.label != "":
		label, labelAt = syntax.Labels[0], syntax.LabelRanges[0]
		if len(syntax.Labels) > 1 {
			d.errorf(syntax.LabelRanges[1], fmt.Sprintf("%q takes one label", spec.name), "The one label is %s.", spec.label)
		}
		if len(spec.labels) > 0 && !slices.Contains(spec.labels, label) {
			d.errorf(labelAt, fmt.Sprintf("Unknown %s %q", spec.name, short(label)), "Known are %s.%s", quoted(spec.labels), didYouMean(label, spec.labels))
		}
	}
	path := join(outer, spec.name)
	if spec.name == "job" {
		path = ""
	}
	if spec.many {
		path = join(path, label)
	}
	b := d.body(spec, syntax.Body, path)
	b.label, b.labelAt, b.header = label, labelAt, header
	d.ranges[path] = header
	for _, row := range spec.attrs {
		if _, ok := b.attrs[row.name]; row.required && !ok {
			d.errorf(header, fmt.Sprintf("Missing attribute %q", row.name), "The %s block needs %s: %s.", spec.name, row.name, row.doc)
		}
	}
	return b
}

// unknownName complains about an attribute or block that the table does not have here, and says where it belongs if
// anywhere.
func (d *decoder) unknownName(spec *blockSpec, path string, node hclsyntax.Node) {
	var name string
	var at hcl.Range
	attr, isAttribute := node.(*hclsyntax.Attribute)
	if isAttribute {
		name, at = attr.Name, attr.NameRange
	} else {
		inner := node.(*hclsyntax.Block)
		name, at = inner.Type, inner.TypeRange
	}
	where := "in a " + spec.name + " block"
	switch {
	case spec.name == "":
		where = "outside of the job block"
	case spec.name != "provider" && strings.HasPrefix(path, "provider."):
		where = "in a provider's " + spec.name + " block"
	}
	switch {
	case isAttribute && spec.block(name) != nil:
		d.errorf(at, fmt.Sprintf("%q is a block", name), "Write it without the equals sign: %s { … }.", header(spec.block(name)))
		return
	case !isAttribute && spec.attribute(name) != nil:
		d.errorf(at, fmt.Sprintf("%q is an attribute", name), "Write it with an equals sign: %s = ….", name)
		return
	}
	what := "block"
	if isAttribute {
		what = "attribute"
	}
	var known []string
	for _, a := range spec.attrs {
		known = append(known, a.name)
	}
	for _, s := range spec.blocks {
		known = append(known, s.name)
	}
	hint := didYouMean(name, known)
	for _, other := range synonyms()[name] {
		if hint == "" && slices.Contains(known, other) {
			hint = fmt.Sprintf(" It is called %q here.", other)
		}
	}
	if places := d.file.places("", name); hint == "" && len(places) > 0 {
		hint = fmt.Sprintf(" It belongs %s.", strings.Join(places, " or "))
	}
	if hint == "" && len(known) > 0 {
		hint = " Known are " + strings.Join(known, ", ") + "."
	}
	d.errorf(at, fmt.Sprintf("Unknown %s %q", what, short(name)), "There is no %s %q %s.%s", what, name, where, hint)
}

func header(s *blockSpec) string {
	if s.label == "" {
		return s.name
	}
	return s.name + ` "…"`
}

// places names the blocks in which a name is known.
func (s *blockSpec) places(in, name string) []string {
	var found []string
	if s.attribute(name) != nil || s.block(name) != nil {
		switch in {
		case "":
			found = append(found, "outside of the job block")
		default:
			found = append(found, "in the "+in+" block")
		}
	}
	for i := range s.blocks {
		inner := &s.blocks[i]
		label := inner.name
		switch in {
		case "":
		case "job":
			label = "job's " + inner.name
		default:
			label = strings.TrimPrefix(in, "job's ") + "'s " + inner.name
		}
		found = append(found, inner.places(label, name)...)
	}
	return found
}

func (s *blockSpec) attribute(name string) *attribute {
	for i := range s.attrs {
		if s.attrs[i].name == name {
			return &s.attrs[i]
		}
	}
	return nil
}

func (s *blockSpec) block(name string) *blockSpec {
	for i := range s.blocks {
		if s.blocks[i].name == name {
			return &s.blocks[i]
		}
	}
	return nil
}

// child is the block of that name inside b, or an unwritten one.
func (b *block) child(name string) *block {
	if found := b.blocks[name]; len(found) > 0 {
		return found[0]
	}
	spec := b.spec.block(name)
	if spec == nil {
		panic("jobspec: no block " + name + " in the table of " + b.spec.name)
	}
	return &block{spec: spec, path: join(b.path, name)}
}

// has reports whether the file says something for the attribute, right or wrong.
func (b *block) has(name string) bool {
	b.row(name)
	_, ok := b.attrs[name]
	return ok
}

// at is where the attribute is written, or else the block.
func (b *block) at(name string) hcl.Range {
	if g, ok := b.attrs[name]; ok {
		return g.at
	}
	return b.header
}

func (b *block) row(name string) *attribute {
	row := b.spec.attribute(name)
	if row == nil {
		panic("jobspec: no attribute " + name + " in the table of " + b.spec.name)
	}
	return row
}

// get is the attribute's value, its default, or the zero value; after a mistake the default.
func get[T any](b *block, name string) T {
	row := b.row(name)
	if g, ok := b.attrs[name]; ok && g.value != nil {
		return g.value.(T)
	}
	var zero T
	if row.def == "" {
		return zero
	}
	return row.defaultValue().(T)
}

// defaultValue reads the table's own text. A default that does not fit its kind is a bug that every test meets.
func (row *attribute) defaultValue() any {
	expr, diags := hclsyntax.ParseExpression([]byte(row.def), "default of "+row.name, hcl.InitialPos)
	if diags.HasErrors() {
		panic(diags)
	}
	raw, diags := expr.Value(nil)
	if diags.HasErrors() {
		panic(diags)
	}
	d := &decoder{}
	value := d.convert(row, &given{raw: raw, expr: expr, at: expr.Range()})
	if d.diags.HasErrors() {
		panic(d.diags)
	}
	return value
}

// evaluate gives the value of an expression, not ok after a mistake.
func (d *decoder) evaluate(row *attribute, expr hclsyntax.Expression) (cty.Value, bool) {
	if row.kind == kindType {
		return cty.DynamicVal, true
	}
	value, diags := d.scope.value(expr)
	d.diags = append(d.diags, diags...)
	return value, !diags.HasErrors() && value.IsWhollyKnown()
}

func inOrder(attrs hclsyntax.Attributes) []*hclsyntax.Attribute {
	list := make([]*hclsyntax.Attribute, 0, len(attrs))
	for _, a := range attrs {
		list = append(list, a)
	}
	slices.SortFunc(list, func(a, b *hclsyntax.Attribute) int { return a.NameRange.Start.Byte - b.NameRange.Start.Byte })
	return list
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

// seconds spells a bound of the table.
func seconds(s float64) string {
	return time.Duration(s * float64(time.Second)).String()
}
