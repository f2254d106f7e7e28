package jobspec

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/ext/typeexpr"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/convert"
	ctyjson "github.com/zclconf/go-cty/cty/json"
)

// provider reads one provider block: the attributes of every provider by the table, the others by the provider's
// schema, with the ranges of the file.
func (d *decoder) provider(b *block, opts Options) (Provider, bool) {
	if !d.name(b, "a provider's name") {
		return Provider{}, false
	}
	head, workers := b.child("head"), b.child("workers")
	p := Provider{
		Name:               b.label,
		Regions:            get[[]string](b, "regions"),
		PriceFactor:        get[float64](b, "price_factor"),
		Subnet:             get[string](b, "subnet"),
		USDPerHour:         notEmpty(get[map[string]float64](b, "usd_per_hour")),
		SelfDeleteIdentity: get[string](b, "self_delete_identity"),
		Head:               HeadOverride{InstanceType: get[string](head, "instance_type"), Identity: get[string](head, "identity")},
		Workers: WorkersOverride{
			InstanceTypes: unique(get[[]string](workers, "instance_type")),
			VMImage:       get[string](workers, "vm_image"),
			Identity:      get[string](workers, "identity"),
		},
		Mounts: d.mounts(b),
	}
	for i, region := range p.Regions {
		if slices.Index(p.Regions, region) < i {
			d.errorf(b.attrs["regions"].item(i), fmt.Sprintf("Region %q is named twice", short(region)), "Name it once.")
		}
	}
	if p.PriceFactor > 2 {
		d.warnf(b.at("price_factor"), `"price_factor" multiplies prices`, "%g makes everything %g times as dear. For a discount of ten percent write 0.9.", p.PriceFactor, p.PriceFactor)
	}
	schema, ok := d.schema(b, opts)
	if !ok {
		return p, true
	}
	p.Config = d.config(b, schema, opts)
	return p, true
}

// schema is what is known of the provider; not ok after a complaint.
func (d *decoder) schema(b *block, opts Options) (Schema, bool) {
	if opts.ProviderSchemas == nil {
		return Schema{Open: true}, true
	}
	schema, ok := opts.ProviderSchemas[b.label]
	if !ok {
		known := slices.Sorted(maps.Keys(opts.ProviderSchemas))
		d.errorf(b.labelAt, fmt.Sprintf("Unknown provider %q", short(b.label)),
			"Known providers: %s. Others are found as launcher-provider-%s beside the launcher and on the PATH.%s", strings.Join(known, ", "), short(b.label), didYouMean(b.label, known))
	}
	return schema, ok
}

// config makes the provider's own attributes into JSON.
func (d *decoder) config(b *block, schema Schema, opts Options) Config {
	values := map[string]cty.Value{}
	known := map[string]Attribute{}
	for _, a := range schema.Attributes {
		known[a.Name] = a
		if g, ok := b.attrs[a.Name]; ok && g.value != nil {
			if v, ok := d.fit(b, a, g, opts); ok {
				values[a.Name] = v
			}
		}
	}
	seen := map[string]bool{}
	for _, syntax := range b.rest {
		a, ok := known[syntax.Name]
		if !ok && !schema.Open {
			d.unknownConfig(b, schema, syntax)
			continue
		}
		if !ok {
			a = Attribute{Name: syntax.Name, Type: "any"}
		}
		seen[a.Name] = true
		g := &given{expr: syntax.Expr, at: syntax.Expr.Range()}
		d.ranges[join(b.path, a.Name)] = g.at
		raw, diags := d.scope.value(syntax.Expr)
		d.diags = append(d.diags, diags...)
		if diags.HasErrors() || !raw.IsWhollyKnown() {
			continue
		}
		if raw.IsNull() {
			seen[a.Name] = false
			continue
		}
		g.raw = raw
		if v, ok := d.fit(b, a, g, opts); ok {
			values[a.Name] = v
		}
	}
	for _, a := range schema.Attributes {
		if a.Required && !seen[a.Name] && b.attrs[a.Name] == nil {
			d.errorf(b.header, fmt.Sprintf("Missing attribute %q", short(a.Name)), "Provider %q needs %s: %s.", b.label, a.Name, strings.TrimSuffix(a.Doc, "."))
		}
	}
	object := cty.ObjectVal(values)
	text, err := ctyjson.Marshal(object, object.Type())
	if err == nil {
		text, err = json.Marshal(json.RawMessage(text))
	}
	if err != nil {
		d.errorf(b.header, fmt.Sprintf("Provider %q cannot be sent this block", b.label), "It has a value without a form in JSON: %s.", err)
		return nil
	}
	return text
}

func (d *decoder) unknownConfig(b *block, schema Schema, syntax *hclsyntax.Attribute) {
	var known []string
	for _, a := range schema.Attributes {
		known = append(known, a.Name)
	}
	for _, a := range b.spec.attrs {
		if !slices.Contains(known, a.name) {
			known = append(known, a.name)
		}
	}
	slices.Sort(known)
	hint := didYouMean(syntax.Name, known)
	for _, other := range synonyms()[syntax.Name] {
		if hint == "" && slices.Contains(known, other) {
			hint = fmt.Sprintf(" It is called %q here.", other)
		}
	}
	if places := d.file.places("", syntax.Name); hint == "" && len(places) > 0 {
		hint = fmt.Sprintf(" It belongs %s.", strings.Join(places, " or "))
	}
	if hint == "" {
		hint = " Known are " + strings.Join(known, ", ") + "."
	}
	d.errorf(syntax.NameRange, fmt.Sprintf("Unknown attribute %q", short(syntax.Name)), "Provider %q has no attribute %q.%s", b.label, syntax.Name, hint)
}

// fit converts a value to the type of the schema.
func (d *decoder) fit(b *block, a Attribute, g *given, opts Options) (cty.Value, bool) {
	typ := a.Type
	if typ == "path" || typ == "file" {
		typ = "string"
	}
	expr, diags := hclsyntax.ParseExpression([]byte(typ), "schema of "+b.label, hcl.InitialPos)
	want := cty.DynamicPseudoType
	if !diags.HasErrors() {
		want, diags = typeexpr.TypeConstraint(expr)
	}
	if diags.HasErrors() {
		d.errorf(b.header, fmt.Sprintf("Provider %q has a broken schema", b.label), "Its attribute %q has the type %q, which is none. This is a bug of the provider.", a.Name, a.Type)
		return cty.NilVal, false
	}
	v, err := convert.Convert(g.raw, want)
	if err != nil {
		d.errorf(g.at, fmt.Sprintf("Wrong type for %q", short(a.Name)), "%s is %s: %s (%s).", a.Name, a.Type, err, strings.TrimSuffix(a.Doc, "."))
		return cty.NilVal, false
	}
	if a.Type == "path" || a.Type == "file" {
		v = cty.StringVal(opts.abs(v.AsString()))
	}
	if a.Type == "file" {
		d.files[join(b.path, a.Name)] = v.AsString()
	}
	return v, true
}
