package app

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// verifyTimeout bounds one question.
const verifyTimeout = 10 * time.Second

// Verify asks a manager whether it is ready. It returns what the manager says of each check;
// the error tells that it is not ready, or that nobody answers.
func Verify(ctx context.Context, url string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, verifyTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(url, "/")+"/readyz?verbose", http.NoBody)
	if err != nil {
		return "", err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return "", err
	}
	if resp.StatusCode != http.StatusOK {
		return string(body), fmt.Errorf("not ready: %s", resp.Status)
	}
	return string(body), nil
}
