package providers

import (
	"errors"
	"fmt"
)

// Code classifies a provider's refusal. Callers branch on it and never on the text. Codes cross the plugin wire.
type Code string

// The codes.
const (
	NotFound    Code = "not_found"   // the thing named does not exist
	Capacity    Code = "capacity"    // the pool is dry: another zone, type or time may do
	Quota       Code = "quota"       // the account's limit: another region or a raised limit may do
	Throttled   Code = "throttled"   // too many calls: the same call later will do
	Auth        Code = "auth"        // no or insufficient credentials: a person must act
	Invalid     Code = "invalid"     // the request can never succeed as it is
	Unavailable Code = "unavailable" // the cloud did not answer, or answered 5xx; the effect may have happened
	Internal    Code = "internal"    // a bug, here or there
	Gone        Code = "plugin_gone" // the plugin died: it is restarted and the call repeated with the same token
)

// Error is a provider's refusal.
type Error struct {
	Code Code `json:"code"`
	// Op is the method, lower case: "create".
	Op string `json:"op"`
	// Message is for people: lower case, no trailing period.
	Message string `json:"message"`
	// Attribute is the path inside the provider's block that is at fault, if one is: "regions[0]".
	Attribute string `json:"attribute,omitempty"`
	// Offers carries a code per offer where Create was refused.
	Offers []Refusal `json:"offers,omitempty"`
	// Err is the cause; it does not cross the plugin wire.
	Err error `json:"-"`
}

func (e *Error) Error() string {
	text := e.Message
	if text == "" && e.Err != nil {
		text = e.Err.Error()
	}
	if text == "" {
		text = string(e.Code)
	}
	if e.Op == "" {
		return fmt.Sprintf("%s (%s)", text, e.Code)
	}
	return fmt.Sprintf("%s: %s (%s)", e.Op, text, e.Code)
}

func (e *Error) Unwrap() error { return e.Err }

// Errorf makes an *Error; a %w operand is kept as the cause.
func Errorf(code Code, op, format string, args ...any) *Error {
	err := fmt.Errorf(format, args...)
	return &Error{Code: code, Op: op, Message: err.Error(), Err: errors.Unwrap(err)}
}

// CodeOf returns the code of err: that of the *Error in its chain, else Internal; "" for nil.
func CodeOf(err error) Code {
	if err == nil {
		return ""
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Code
	}
	return Internal
}

// Retryable tells whether the same call may succeed later without anybody acting.
func (c Code) Retryable() bool {
	switch c {
	case Throttled, Unavailable, Gone:
		return true
	case NotFound, Capacity, Quota, Auth, Invalid, Internal:
		return false
	}
	return false
}
