package jobspec

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"unicode/utf8"

	"github.com/hashicorp/hcl/v2/ext/tryfunc"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/function"
	"github.com/zclconf/go-cty/cty/function/stdlib"
)

// maxFile bounds what file() takes in: the text travels in the Job.
const maxFile = 1 << 20

// functions are what a job file can call.
func functions(opts Options) map[string]function.Function {
	return map[string]function.Function{
		"env":  envFunc(opts),
		"file": fileFunc(opts),
		"try":  tryfunc.TryFunc,
		"can":  tryfunc.CanFunc,

		"abs": stdlib.AbsoluteFunc, "ceil": stdlib.CeilFunc, "floor": stdlib.FloorFunc, "int": stdlib.IntFunc,
		"log": stdlib.LogFunc, "max": stdlib.MaxFunc, "min": stdlib.MinFunc, "pow": stdlib.PowFunc,
		"signum": stdlib.SignumFunc, "parseint": stdlib.ParseIntFunc,

		"upper": stdlib.UpperFunc, "lower": stdlib.LowerFunc, "title": stdlib.TitleFunc, "strlen": stdlib.StrlenFunc,
		"substr": stdlib.SubstrFunc, "strrev": stdlib.ReverseFunc, "join": stdlib.JoinFunc, "split": stdlib.SplitFunc,
		"chomp": stdlib.ChompFunc, "indent": stdlib.IndentFunc, "trim": stdlib.TrimFunc, "trimspace": stdlib.TrimSpaceFunc,
		"trimprefix": stdlib.TrimPrefixFunc, "trimsuffix": stdlib.TrimSuffixFunc, "replace": stdlib.ReplaceFunc,
		"regex": stdlib.RegexFunc, "regexall": stdlib.RegexAllFunc, "regexreplace": stdlib.RegexReplaceFunc,
		"format": stdlib.FormatFunc, "formatlist": stdlib.FormatListFunc,

		"length": stdlib.LengthFunc, "element": stdlib.ElementFunc, "concat": stdlib.ConcatFunc, "contains": stdlib.ContainsFunc,
		"distinct": stdlib.DistinctFunc, "compact": stdlib.CompactFunc, "flatten": stdlib.FlattenFunc,
		"coalesce": stdlib.CoalesceFunc, "coalescelist": stdlib.CoalesceListFunc, "chunklist": stdlib.ChunklistFunc,
		"keys": stdlib.KeysFunc, "values": stdlib.ValuesFunc, "lookup": stdlib.LookupFunc, "merge": stdlib.MergeFunc,
		"range": stdlib.RangeFunc, "reverse": stdlib.ReverseListFunc, "slice": stdlib.SliceFunc, "sort": stdlib.SortFunc,
		"zipmap": stdlib.ZipmapFunc, "setunion": stdlib.SetUnionFunc, "setintersection": stdlib.SetIntersectionFunc,
		"setsubtract": stdlib.SetSubtractFunc, "setproduct": stdlib.SetProductFunc,

		"jsonencode": stdlib.JSONEncodeFunc, "jsondecode": stdlib.JSONDecodeFunc, "csvdecode": stdlib.CSVDecodeFunc,
		"tostring": stdlib.MakeToFunc(cty.String), "tonumber": stdlib.MakeToFunc(cty.Number), "tobool": stdlib.MakeToFunc(cty.Bool),
		"tolist": stdlib.MakeToFunc(cty.List(cty.DynamicPseudoType)), "toset": stdlib.MakeToFunc(cty.Set(cty.DynamicPseudoType)),
		"tomap": stdlib.MakeToFunc(cty.Map(cty.DynamicPseudoType)),
	}
}

func envFunc(opts Options) function.Function {
	return function.New(&function.Spec{
		Params: []function.Parameter{{Name: "name", Type: cty.String}},
		Type:   function.StaticReturnType(cty.String),
		Impl: func(args []cty.Value, _ cty.Type) (cty.Value, error) {
			name := args[0].AsString()
			value, ok := opts.env(name)
			if !ok {
				return cty.NilVal, &refusal{
					fmt.Sprintf("Environment variable %q is not set", short(name)),
					fmt.Sprintf("Set %s before the command, or give it a value to fall back to: try(env(%q), \"…\").", name, name),
				}
			}
			if !utf8.ValidString(value) { // it travels in protobuf strings, which must be
				return cty.NilVal, &refusal{fmt.Sprintf("Environment variable %q is not UTF-8 text", short(name)), "Encode it, in base64 for instance, and decode it in the job."}
			}
			return cty.StringVal(value), nil
		},
	})
}

func fileFunc(opts Options) function.Function {
	return function.New(&function.Spec{
		Params: []function.Parameter{{Name: "path", Type: cty.String}},
		Type:   function.StaticReturnType(cty.String),
		Impl: func(args []cty.Value, _ cty.Type) (cty.Value, error) {
			name := args[0].AsString()
			full := opts.abs(name)
			data, err := opts.read(full)
			summary := fmt.Sprintf("Cannot read file %q", short(name))
			switch {
			case err != nil:
				return cty.NilVal, &refusal{summary, fmt.Sprintf("Paths are relative to the job file: %s.", err)}
			case len(data) > maxFile:
				return cty.NilVal, &refusal{summary, fmt.Sprintf("%s is larger than 1 MiB. Put it into the workdir, and read it there.", full)}
			case !utf8.Valid(data):
				return cty.NilVal, &refusal{summary, fmt.Sprintf("%s is not UTF-8 text.", full)}
			}
			return cty.StringVal(string(data)), nil
		},
	})
}

func (o Options) env(name string) (string, bool) {
	if o.Env != nil {
		return o.Env(name)
	}
	return os.LookupEnv(name)
}

// read gives a regular file of at most a byte more than maxFile; anything else could block or never end.
func (o Options) read(full string) ([]byte, error) {
	if o.ReadFile != nil {
		return o.ReadFile(full)
	}
	info, err := os.Stat(full)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", full)
	}
	f, err := os.Open(full)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxFile+1))
}

// abs makes a path of the file absolute: ~/ is the caller's home, everything else is relative to the job file.
func (o Options) abs(path string) string {
	if rest, ok := strings.CutPrefix(path, "~/"); ok {
		if home, ok := o.env("HOME"); ok && home != "" {
			return filepath.Join(home, rest)
		}
	}
	if filepath.IsAbs(path) {
		return filepath.Clean(path)
	}
	return filepath.Join(o.Dir, path)
}
