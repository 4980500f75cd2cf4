<?php
// A mail as Nextcloud sends it by these settings: lib/private/Mail/Mailer.php gives them to Symfony's
// Mailer, and `getDefaultEmailAddress` of lib/public/Util.php makes the sender.
require 'Symfony/Component/Mailer/autoload.php';

use Symfony\Component\Mailer\Transport\Smtp\EsmtpTransport;
use Symfony\Component\Mime\Email;

$config = eval('return [' . file_get_contents($argv[1]) . '];');
$known = ['mail_smtpmode', 'mail_smtphost', 'mail_smtpport', 'mail_smtpsecure', 'mail_smtpauth',
    'mail_smtpname', 'mail_smtppassword', 'mail_from_address', 'mail_domain'];
assert(array_diff(array_keys($config), $known) === [], 'Nextcloud does not know a setting');
assert($config['mail_smtpmode'] === 'smtp');

$secure = $config['mail_smtpsecure'] === 'ssl' ? true : null;
$transport = new EsmtpTransport($config['mail_smtphost'], $config['mail_smtpport'], $secure);
$transport->getStream()->setTimeout(10);
if ($config['mail_smtpauth']) {
    $transport->setUsername($config['mail_smtpname']);
    $transport->setPassword($config['mail_smtppassword']);
}
$transport->send((new Email())
    ->from($config['mail_from_address'] . '@' . $config['mail_domain'])
    ->to('ada@example.net')
    ->subject('Hello')
    ->text('Hi'));
