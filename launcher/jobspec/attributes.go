package jobspec

// AttributeDoc documents one attribute or block of the job file. It is made from the table that Parse reads.
type AttributeDoc struct {
	// Path is "BLOCK.NAME" below the job block, "NAME" for what stands in it directly ("env", "run"), and
	// "variable", "variable.default" … for what stands beside it.
	Path string `json:"path"`
	// Type is "block", "block with label", or what the value is: string, whole number, number, bool, duration,
	// bandwidth, list(string), map(string), …
	Type string `json:"type"`
	// Default is the value as HCL; empty for blocks, for what is required, and where leaving it out means no value.
	Default string `json:"default,omitempty"`
	// Unset says in words what leaving it out means, where that is no value: "never", "none", …
	Unset    string `json:"unset,omitempty"`
	Required bool   `json:"required,omitempty"`
	// Values are the words allowed, if only some are; for a block those allowed as its label.
	Values []string `json:"values,omitempty"`
	Doc    string   `json:"doc"`
}

// Attributes lists everything a job file can say, blocks before what is in them, in the order of the table.
func Attributes() []AttributeDoc {
	file := fileSpec()
	var docs []AttributeDoc
	for i := range file.blocks {
		b := &file.blocks[i]
		if b.name == "job" {
			docs = append(docs, b.docs("")...)
			continue
		}
		docs = append(docs, b.docs(b.name)...)
	}
	return docs
}

func (s *blockSpec) docs(path string) []AttributeDoc {
	var docs []AttributeDoc
	if path != "" {
		typ := "block"
		if s.label != "" {
			typ = "block with label"
		}
		docs = append(docs, AttributeDoc{Path: path, Type: typ, Required: s.must, Values: s.labels, Doc: s.doc})
	}
	for _, a := range s.attrs {
		docs = append(docs, AttributeDoc{Path: join(path, a.name), Type: string(a.kind), Default: a.def, Unset: a.unset, Required: a.required, Values: a.values, Doc: a.doc})
	}
	for i := range s.blocks {
		docs = append(docs, s.blocks[i].docs(join(path, s.blocks[i].name))...)
	}
	return docs
}
