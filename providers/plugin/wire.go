package plugin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode"

	goplugin "github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"

	"github.com/ephemeral-launcher/launcher/providers"
)

// What both sides must agree on. See provider.proto.
const (
	protocolVersion = 1
	cookieKey       = "LAUNCHER_PROVIDER_PLUGIN"
	cookieValue     = "8f2b1d6e-provider"
	serviceName     = "launcher.provider.v1.Provider"

	// maxMessage is the size of a message, in bytes, that either side takes: far more than the listing of the largest
	// account, far less than what go-plugin allows (2 GiB).
	maxMessage = 64 << 20
	// maxValues bounds the values in a reply: a list of 2^25 zeros fits a message, and is gigabytes once decoded.
	maxValues = 1 << 21
	// maxText bounds a line for people, in bytes.
	maxText = 4 << 10
)

// The methods, by the names they have in errors; the wire's are capitalised.
const (
	opInfo    = "info"
	opOffers  = "offers"
	opCreate  = "create"
	opList    = "list"
	opDelete  = "delete"
	opUpdate  = "update"
	opPreempt = "preempt"
	opCheck   = "check"
)

// methodName is the gRPC name of an operation.
func methodName(op string) string { return strings.ToUpper(op[:1]) + op[1:] }

func handshake() goplugin.HandshakeConfig {
	return goplugin.HandshakeConfig{ProtocolVersion: protocolVersion, MagicCookieKey: cookieKey, MagicCookieValue: cookieValue}
}

// pluginName is the name of the one service among go-plugin's.
const pluginName = "provider"

// seam is what go-plugin wants to know: how a service is registered, and that a client is the connection itself.
type seam struct {
	goplugin.NetRPCUnsupportedPlugin
	serve func(*grpc.Server)
}

var _ goplugin.GRPCPlugin = seam{}

func (s seam) GRPCServer(_ *goplugin.GRPCBroker, server *grpc.Server) error {
	s.serve(server)
	return nil
}

func (s seam) GRPCClient(_ context.Context, _ *goplugin.GRPCBroker, conn *grpc.ClientConn) (any, error) {
	return conn, nil
}

// envelope is a reply.
type envelope struct {
	Result json.RawMessage  `json:"result,omitempty"`
	Error  *providers.Error `json:"error,omitempty"`
}

// encodeReply is what the plugin answers: the result, or the refusal.
func encodeReply(op string, result any, err error) ([]byte, error) {
	if err != nil {
		return json.Marshal(envelope{Error: refusalOf(op, err)})
	}
	raw, err := json.Marshal(result)
	if err != nil {
		return json.Marshal(envelope{Error: providers.Errorf(providers.Internal, op, "encode the result: %w", err)})
	}
	return json.Marshal(envelope{Result: raw})
}

// refusalOf is the error as it crosses the wire, where causes do not: their text goes into the message.
func refusalOf(op string, err error) *providers.Error {
	e, ok := errors.AsType[*providers.Error](err)
	if !ok {
		return &providers.Error{Code: providers.Internal, Op: op, Message: err.Error()}
	}
	sent := *e
	sent.Op = op
	switch {
	case error(e) != err: //nolint:errorlint // is it the error itself or one further down?
		sent.Message = err.Error()
	case sent.Message == "" && sent.Err != nil:
		sent.Message = sent.Err.Error()
	}
	return &sent
}

// decodeReply reads what a plugin answered, trusting none of it. A refusal is returned as such; what cannot be read is Internal.
func decodeReply(op string, reply []byte, result any) error {
	if bytes.Count(reply, []byte{','}) >= maxValues {
		return providers.Errorf(providers.Internal, op, "the plugin's reply has more than %d values", maxValues)
	}
	var e envelope
	if err := json.Unmarshal(reply, &e); err != nil {
		return unreadable(op, err)
	}
	if e.Error != nil {
		return cleanRefusal(op, e.Error)
	}
	if e.Result == nil {
		return providers.Errorf(providers.Internal, op, "the plugin's reply has neither result nor error")
	}
	if err := json.Unmarshal(e.Result, result); err != nil {
		return unreadable(op, err)
	}
	return nil
}

func unreadable(op string, err error) error {
	return providers.Errorf(providers.Internal, op, "the plugin's reply cannot be read: %s", clean(err.Error()))
}

// cleanRefusal leaves of a plugin's refusal what a caller can rely on: a known code, the op that was called, printable text.
func cleanRefusal(op string, e *providers.Error) *providers.Error {
	e.Op = op
	e.Message = clean(e.Message)
	e.Attribute = clean(e.Attribute)
	e.Code, e.Message = knownCode(e.Code, e.Message)
	for i := range e.Offers {
		r := &e.Offers[i]
		r.Code, r.Message = knownCode(r.Code, clean(r.Message))
	}
	return e
}

// knownCode maps codes of a later version to Internal. Only the host says that a plugin is gone: from one that still
// talks it is taken for what is nearest.
func knownCode(code providers.Code, message string) (providers.Code, string) {
	switch code {
	case providers.NotFound, providers.Capacity, providers.Quota, providers.Throttled, providers.Auth, providers.Invalid,
		providers.Unavailable, providers.Internal:
		return code, message
	case providers.Gone:
		return providers.Unavailable, message
	}
	return providers.Internal, fmt.Sprintf("%s (unknown code %q)", message, clean(string(code)))
}

// clean makes a plugin's text fit for a terminal: one line, bounded, without control or formatting characters.
func clean(text string) string {
	if len(text) > maxText {
		text = strings.ToValidUTF8(text[:maxText], "") + "…"
	}
	return strings.Map(func(r rune) rune {
		switch {
		case unicode.IsSpace(r):
			return ' '
		case !unicode.IsPrint(r):
			return -1
		}
		return r
	}, strings.ToValidUTF8(text, ""))
}

// remote is the provider at the far end. invoke carries one call; its errors are a caller's to return.
type remote struct {
	invoke func(ctx context.Context, op string, request []byte) ([]byte, error)
}

func exchange[Result any](ctx context.Context, r remote, op string, request any) (result Result, err error) {
	body, err := json.Marshal(request)
	if err != nil { // a block that is no JSON
		return result, providers.Errorf(providers.Invalid, op, "encode the request: %w", err)
	}
	reply, err := r.invoke(ctx, op, body)
	if err != nil {
		return result, err
	}
	if err := decodeReply(op, reply, &result); err != nil {
		var none Result // not half a listing
		return none, err
	}
	return result, nil
}

func (r remote) Info(ctx context.Context) (providers.Info, error) {
	return exchange[providers.Info](ctx, r, opInfo, struct{}{})
}

func (r remote) Offers(ctx context.Context, req providers.OffersRequest) ([]providers.Offer, error) {
	return exchange[[]providers.Offer](ctx, r, opOffers, req)
}

func (r remote) Create(ctx context.Context, req providers.CreateRequest) (providers.CreateResult, error) {
	return exchange[providers.CreateResult](ctx, r, opCreate, req)
}

func (r remote) List(ctx context.Context, filter providers.Filter) ([]providers.Resource, error) {
	return exchange[[]providers.Resource](ctx, r, opList, filter)
}

func (r remote) Delete(ctx context.Context, req providers.DeleteRequest) ([]providers.Resource, error) {
	return exchange[[]providers.Resource](ctx, r, opDelete, req)
}

func (r remote) Update(ctx context.Context, req providers.UpdateRequest) error {
	_, err := exchange[struct{}](ctx, r, opUpdate, req)
	return err
}

func (r remote) Preempt(ctx context.Context, req providers.PreemptRequest) error {
	_, err := exchange[struct{}](ctx, r, opPreempt, req)
	return err
}

func (r remote) Check(ctx context.Context, config json.RawMessage) (providers.Identity, error) {
	return exchange[providers.Identity](ctx, r, opCheck, config)
}
