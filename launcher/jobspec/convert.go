package jobspec

import (
	"fmt"
	"maps"
	"math"
	"math/big"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/agext/levenshtein"
	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/convert"
)

// maxCount bounds counts so that sums and products of a few of them fit everywhere.
const maxCount = 1_000_000

// convert turns a value into the Go value of the row's kind; nil after a mistake.
func (d *decoder) convert(row *attribute, g *given) any {
	switch row.kind {
	case kindString:
		return d.word(row, g)
	case kindCount:
		return d.count(row, g)
	case kindNumber:
		return d.number(row, g)
	case kindBool:
		return wanted(d, row, g, cty.Bool, cty.Value.True)
	case kindDuration:
		return d.duration(row, g)
	case kindList:
		return d.list(row, g)
	case kindOneOrList:
		list := *g
		if g.raw.Type().IsPrimitiveType() {
			list.raw = cty.TupleVal([]cty.Value{g.raw})
		}
		return d.list(row, &list)
	case kindMap:
		return d.stringMap(row, g)
	case kindPrices:
		return d.prices(row, g)
	case kindProcs:
		if v, err := convert.Convert(g.raw, cty.String); err == nil && v.AsString() == "gpu" {
			return 0
		}
		return d.count(row, g)
	case kindBandwidth:
		return d.bandwidth(row, g)
	case kindAny, kindType:
		return g.raw
	}
	panic("jobspec: no reader for kind " + string(row.kind))
}

func (d *decoder) wrongType(row *attribute, g *given, is string) {
	got := friendly(g.raw.Type())
	if t := g.raw.Type(); t == cty.String && g.raw.IsKnown() && !g.raw.IsNull() {
		got = strconv.Quote(short(g.raw.AsString()))
	}
	d.errorf(g.at, fmt.Sprintf("Wrong type for %q", row.name), "%s must be %s, not %s.", row.name, is, got)
}

// friendly is what people who never heard of tuples call a type.
func friendly(t cty.Type) string {
	switch {
	case t.IsTupleType() || t.IsListType() || t.IsSetType():
		return "a list"
	case t.IsObjectType() || t.IsMapType():
		return "a map"
	case t == cty.Bool:
		return "true or false"
	}
	return "a " + t.FriendlyName()
}

func (d *decoder) wrongValue(row *attribute, at hcl.Range, detail string, args ...any) {
	d.errorf(at, fmt.Sprintf("Wrong value for %q", row.name), detail, args...)
}

// wanted converts by HCL's own rules and reads the result with one of cty's accessors.
func wanted[T any](d *decoder, row *attribute, g *given, t cty.Type, read func(cty.Value) T) any {
	v, err := convert.Convert(g.raw, t)
	if err != nil || v.IsNull() {
		d.wrongType(row, g, friendly(t))
		return nil
	}
	return read(v)
}

func (d *decoder) word(row *attribute, g *given) any {
	v := wanted(d, row, g, cty.String, cty.Value.AsString)
	s, ok := v.(string)
	switch {
	case !ok:
		return nil
	case len(row.values) > 0 && !slices.Contains(row.values, s):
		hint := didYouMean(s, row.values)
		for _, other := range synonyms()[s] {
			if hint == "" && slices.Contains(row.values, other) {
				hint = fmt.Sprintf(" It is called %q here.", other)
			}
		}
		d.wrongValue(row, g.at, "%s.%s", oneOf(row, s), hint)
		return nil
	case strings.TrimSpace(s) == "" && row.name != "setup" && row.name != "description":
		hint := " Leave it out to say nothing."
		if row.required {
			hint = ""
		}
		d.wrongValue(row, g.at, "%s is empty.%s", row.name, hint)
		return nil
	case strings.ContainsRune(s, 0):
		d.wrongValue(row, g.at, "%s has a zero byte in it.", row.name)
		return nil
	}
	return s
}

func oneOf(row *attribute, s string) string {
	if row.name == "signal" {
		switch s {
		case "SIGKILL", "SIGSTOP":
			return s + " cannot be caught, so a process could not save anything. Use one of " + quoted(row.values)
		}
		if up := strings.ToUpper(s); slices.Contains(row.values, "SIG"+up) {
			return fmt.Sprintf("Write the signal's whole name: %q", "SIG"+up)
		}
	}
	return fmt.Sprintf("%s must be one of %s, not %q", row.name, quoted(row.values), short(s))
}

func (d *decoder) count(row *attribute, g *given) any {
	v, err := convert.Convert(g.raw, cty.Number)
	if err != nil {
		is := "a whole number"
		if row.kind == kindProcs {
			is = `a whole number or "gpu"`
		}
		d.wrongType(row, g, is)
		return nil
	}
	n, accuracy := v.AsBigFloat().Int64()
	switch {
	case accuracy != big.Exact:
		d.wrongValue(row, g.at, "%s must be a whole number, not %s.", row.name, v.AsBigFloat().Text('g', 10))
		return nil
	case float64(n) < row.min:
		d.wrongValue(row, g.at, "%s must be at least %d, not %d.", row.name, int(row.min), n)
		return nil
	case n > maxCount:
		d.wrongValue(row, g.at, "%s must be at most %d, not %d.", row.name, maxCount, n)
		return nil
	}
	return int(n)
}

func (d *decoder) number(row *attribute, g *given) any {
	v, err := convert.Convert(g.raw, cty.Number)
	if err != nil {
		d.wrongType(row, g, "a number")
		return nil
	}
	f, _ := v.AsBigFloat().Float64()
	if f <= row.min || math.IsInf(f, 0) {
		d.wrongValue(row, g.at, "%s must be more than %g and finite, not %s.", row.name, row.min, v.AsBigFloat().Text('g', 10))
		return nil
	}
	return f
}

func (d *decoder) duration(row *attribute, g *given) any {
	v, err := convert.Convert(g.raw, cty.String)
	if err != nil {
		d.wrongType(row, g, `a duration such as "90s"`)
		return nil
	}
	text := v.AsString()
	t, err := time.ParseDuration(text)
	switch {
	case err != nil:
		d.wrongValue(row, g.at, "%s must be a duration such as \"90s\", \"20m\" or \"1h30m\", not %q.%s", row.name, short(text), durationHint(row, text))
		return nil
	case t < time.Duration(row.min*float64(time.Second)):
		d.wrongValue(row, g.at, "%s must be at least %s, not %q.", row.name, seconds(row.min), short(text))
		return nil
	}
	return t
}

func durationHint(row *attribute, text string) string {
	switch text {
	case "never", "off", "none":
		if row.def == "" {
			return fmt.Sprintf(" Leave %s out: that means %s.", row.name, row.unset)
		}
		return ""
	}
	if n, err := strconv.ParseFloat(text, 64); err == nil {
		return fmt.Sprintf(" A number needs its unit: \"%gs\" for seconds.", n)
	}
	if days, ok := strings.CutSuffix(text, "d"); ok {
		if n, err := strconv.ParseFloat(days, 64); err == nil {
			return fmt.Sprintf(" The largest unit is the hour: \"%gh\".", n*24)
		}
	}
	return " Units are h, m, s and ms."
}

func (d *decoder) list(row *attribute, g *given) any {
	is := "a list of strings"
	if row.kind == kindOneOrList {
		is = "a string or a list of strings"
	}
	t := g.raw.Type()
	if !t.IsTupleType() && !t.IsListType() && !t.IsSetType() {
		if row.kind == kindList && t.IsPrimitiveType() {
			is += ", in brackets"
		}
		d.wrongType(row, g, is)
		return nil
	}
	var list []string
	ok := true
	for i, v := range g.raw.AsValueSlice() {
		s, err := convert.Convert(v, cty.String)
		switch {
		case err != nil || s.IsNull():
			d.errorf(g.item(i), fmt.Sprintf("Wrong type for %q", row.name), "%s must be %s; this item is %s.", row.name, is, friendly(v.Type()))
			ok = false
		case strings.TrimSpace(s.AsString()) == "":
			d.wrongValue(row, g.item(i), "An item of %s is empty.", row.name)
			ok = false
		case strings.ContainsRune(s.AsString(), 0):
			d.wrongValue(row, g.item(i), "An item of %s has a zero byte in it.", row.name)
			ok = false
		default:
			list = append(list, s.AsString())
		}
	}
	if !ok {
		return nil
	}
	return list
}

func (d *decoder) stringMap(row *attribute, g *given) any {
	if t := g.raw.Type(); !t.IsObjectType() && !t.IsMapType() {
		d.wrongType(row, g, `a map of strings such as { NAME = "value" }`)
		return nil
	}
	m, ok := map[string]string{}, true
	for _, key := range sortedKeys(g.raw) {
		v := g.raw.AsValueMap()[key]
		s, err := convert.Convert(v, cty.String)
		switch {
		case err == nil && s.IsNull(): // left out, as everywhere
		case err != nil:
			d.errorf(g.entry(key), fmt.Sprintf("Wrong type for %q", row.name), "The values of %s are strings; %s is %s. jsonencode(…) makes a string of anything.", row.name, short(key), friendly(v.Type()))
			ok = false
		case strings.ContainsRune(s.AsString(), 0) || strings.ContainsRune(key, 0):
			d.wrongValue(row, g.entry(key), "%q has a zero byte in it.", short(key))
			ok = false
		default:
			m[key] = s.AsString()
		}
	}
	if !ok {
		return nil
	}
	return m
}

func (d *decoder) prices(row *attribute, g *given) any {
	prices := g.raw
	if v, err := convert.Convert(prices, cty.Number); err == nil {
		prices = cty.ObjectVal(map[string]cty.Value{"*": v})
	}
	if t := prices.Type(); !t.IsObjectType() && !t.IsMapType() {
		d.wrongType(row, g, "a number, or a map of numbers by instance type or market")
		return nil
	}
	m, ok := map[string]float64{}, true
	for _, key := range sortedKeys(prices) {
		v, err := convert.Convert(prices.AsValueMap()[key], cty.Number)
		if err == nil && v.IsNull() {
			continue
		}
		if err != nil {
			d.errorf(g.entry(key), fmt.Sprintf("Wrong type for %q", row.name), "The values of %s are numbers; %s is not.", row.name, short(key))
			ok = false
			continue
		}
		f, _ := v.AsBigFloat().Float64()
		if f < 0 || math.IsInf(f, 0) {
			d.wrongValue(row, g.entry(key), "A price is not negative and finite; %s is %g.", short(key), f)
			ok = false
			continue
		}
		m[key] = f
	}
	if !ok {
		return nil
	}
	return m
}

func (d *decoder) bandwidth(row *attribute, g *given) any {
	v, err := convert.Convert(g.raw, cty.String)
	if err != nil {
		d.wrongType(row, g, `a bandwidth such as "5Gbit"`)
		return nil
	}
	text := v.AsString()
	number := strings.TrimRight(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ/ ")
	factor := map[string]float64{"bit": 1, "Kbit": 1e3, "Mbit": 1e6, "Gbit": 1e9, "Tbit": 1e12}[text[len(number):]]
	n, err := strconv.ParseFloat(number, 64)
	switch {
	case err != nil || factor == 0:
		hint := ""
		if unit := text[len(number):]; err == nil && unit != "" && strings.ContainsRune("KMGTkmgt", rune(unit[0])) {
			hint = fmt.Sprintf(" If bits per second are meant: \"%s%cbit\".", number, strings.ToUpper(unit)[0])
		}
		d.wrongValue(row, g.at, "%s must be a number and one of bit, Kbit, Mbit, Gbit, Tbit (per second), such as \"5Gbit\", not %q.%s", row.name, short(text), hint)
		return nil
	case !(n*factor >= 1 && n*factor <= 1e15):
		d.wrongValue(row, g.at, "%s must be between 1bit and 1000Tbit, not %q.", row.name, short(text))
		return nil
	}
	return int64(math.Round(n * factor))
}

// item is the range of one element, as far as the file writes a list out.
func (g *given) item(i int) hcl.Range {
	if tuple, ok := g.expr.(*hclsyntax.TupleConsExpr); ok && i < len(tuple.Exprs) {
		return tuple.Exprs[i].Range()
	}
	return g.at
}

// entry is the range of one element's key, as far as the file writes a map out.
func (g *given) entry(key string) hcl.Range {
	object, ok := g.expr.(*hclsyntax.ObjectConsExpr)
	if !ok {
		return g.at
	}
	for _, item := range object.Items {
		if k, diags := item.KeyExpr.Value(nil); !diags.HasErrors() && k.Type() == cty.String && k.IsKnown() && !k.IsNull() && k.AsString() == key {
			return item.KeyExpr.Range()
		}
	}
	return g.at
}

func sortedKeys(v cty.Value) []string {
	return slices.Sorted(maps.Keys(v.AsValueMap()))
}

// short keeps a name from the file from filling a message.
func short(s string) string {
	const most = 24
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, s)
	if runes := []rune(s); len(runes) > most {
		return string(runes[:most-1]) + "…"
	}
	return s
}

func quoted(list []string) string {
	var q []string
	for _, s := range list {
		q = append(q, strconv.Quote(s))
	}
	return strings.Join(q, ", ")
}

// didYouMean is a sentence with the nearest of the words, or nothing where none is near.
func didYouMean(got string, known []string) string {
	best, least := "", 3
	for _, k := range known {
		n := levenshtein.Distance(strings.ToLower(got), k, nil)
		if strings.EqualFold(strings.ReplaceAll(got, "-", "_"), k) {
			n = 0
		}
		if len(got) > 2 && (strings.HasPrefix(k, got) || strings.HasPrefix(got, k)) {
			n = min(n, 2)
		}
		// Two letters of a word of three are another word.
		if n < least && n*2 < max(len(k), len(got)) {
			best, least = k, n
		}
	}
	if best == "" {
		return ""
	}
	return fmt.Sprintf(" Did you mean %q?", best)
}
