package jobspec

import (
	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
)

// Bounds on what makes hcl's parser and evaluator recurse. They are far above what anybody writes, and far below what
// a goroutine's stack can hold: hcl itself has no bound, and running out of stack ends the program, not the call.
const (
	maxNesting = 200
	maxChain   = 2000
)

// tooDeep finds the place where a text is nested deeper than can be parsed safely.
func tooDeep(src []byte, filename string) *hcl.Diagnostic {
	tokens, _ := hclsyntax.LexConfig(src, filename, hcl.InitialPos)
	depth, prefixes, chain := 0, 0, 0
	for _, t := range tokens {
		switch t.Type {
		case hclsyntax.TokenOBrace, hclsyntax.TokenOBrack, hclsyntax.TokenOParen, hclsyntax.TokenOQuote, hclsyntax.TokenOHeredoc,
			hclsyntax.TokenTemplateInterp, hclsyntax.TokenTemplateControl:
			depth++
		case hclsyntax.TokenCBrace, hclsyntax.TokenCBrack, hclsyntax.TokenCParen, hclsyntax.TokenCQuote, hclsyntax.TokenCHeredoc,
			hclsyntax.TokenTemplateSeqEnd:
			depth--
		}
		switch t.Type {
		case hclsyntax.TokenMinus, hclsyntax.TokenBang:
			prefixes++
		default:
			prefixes = 0
		}
		switch t.Type {
		case hclsyntax.TokenQuestion, hclsyntax.TokenTemplateControl, hclsyntax.TokenPlus, hclsyntax.TokenMinus, hclsyntax.TokenStar, hclsyntax.TokenSlash,
			hclsyntax.TokenPercent, hclsyntax.TokenAnd, hclsyntax.TokenOr, hclsyntax.TokenEqualOp, hclsyntax.TokenNotEqual, hclsyntax.TokenLessThan,
			hclsyntax.TokenGreaterThan, hclsyntax.TokenLessThanEq, hclsyntax.TokenGreaterThanEq, hclsyntax.TokenOBrack, hclsyntax.TokenDot:
			chain++
		case hclsyntax.TokenEqual:
			chain = 0 // the next attribute, or the next entry of a map
		}
		if depth > maxNesting || prefixes > maxNesting || chain > maxChain {
			return complaint(hcl.DiagError, t.Range, "The job file is nested too deeply",
				"No sensible job file is. Put generated text into a file of its own and read it with file(\"PATH\").")
		}
	}
	return nil
}
