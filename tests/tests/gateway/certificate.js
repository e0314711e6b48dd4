// mongosh logs in by the certificate of ann.
function check(holds, what) {
  if (!holds) throw new Error('not so: ' + what);
}
const users = EJSON.stringify(db.adminCommand({connectionStatus: 1}).authInfo.authenticatedUsers);
check(users === '[{"user":"ann","db":"$external"}]', users);
check(db.getSiblingDB('test').things.findOne({_id: 'ann'}).role === 'ann', 'it reads');
print('done');
