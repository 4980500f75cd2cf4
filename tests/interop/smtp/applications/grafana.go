// A mail as Grafana sends it by these settings: pkg/setting/setting_smtp.go reads them, and
// pkg/services/notifications/smtp.go sends, with the same two libraries as here.
package main

import (
	"crypto/tls"
	"log"
	"net"
	"net/mail"
	"os"
	"strconv"

	gomail "gopkg.in/mail.v2"
)

func main() {
	smtp := section(os.Args[1], "smtp",
		"enabled", "host", "user", "password", "from_address", "from_name", "startTLS_policy")
	text := func(name string) string { return smtp.Key(name).String() }
	if !smtp.Key("enabled").MustBool(false) {
		log.Fatal("SMTP is off")
	}
	host, port, err := net.SplitHostPort(text("host"))
	check(err)
	number, err := strconv.Atoi(port)
	check(err)

	dialer := gomail.NewDialer(host, number, text("user"), text("password"))
	dialer.TLSConfig = &tls.Config{ServerName: host}
	switch text("startTLS_policy") {
	case "NoStartTLS":
		dialer.StartTLSPolicy = gomail.NoStartTLS
	case "MandatoryStartTLS":
		dialer.StartTLSPolicy = gomail.MandatoryStartTLS
	}
	from := mail.Address{Name: text("from_name"), Address: text("from_address")}
	message := gomail.NewMessage()
	message.SetHeader("From", from.String())
	message.SetHeader("To", "ada@example.net")
	message.SetHeader("Subject", "Hello")
	message.SetBody("text/html", "<p>Hi</p>")
	check(dialer.DialAndSend(message))
}
